package read

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series"
)

// The following functions return parts of a feed in the format that utilities use.
func feed(entries ...string) string {
	return `<?xml version="1.0" encoding="UTF-8"?><feed xmlns="http://www.w3.org/2005/Atom">` + strings.Join(entries, "\n") + `</feed>`
}

func entry(id string, links []string, content string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<entry><id>urn:uuid:%s</id><title>title of %s</title>", id, id)
	for _, l := range links {
		rel, href, _ := strings.Cut(l, " ")
		fmt.Fprintf(&b, `<link rel="%s" href="https://example.org/%s"/>`, rel, href)
	}
	return b.String() + "<content>" + content + "</content></entry>"
}

func usagePoint(id string, service int) string {
	return entry(
		id, []string{"self UP/" + id, "related UP/" + id + "/MeterReading"},
		fmt.Sprintf(`<UsagePoint xmlns="http://naesb.org/espi"><ServiceCategory><kind>%d</kind></ServiceCategory></UsagePoint>`, service),
	)
}

func meterReading(point, id, kind string) string {
	self := "UP/" + point + "/MeterReading/" + id
	return entry(
		point+id, []string{"self " + self, "up UP/" + point + "/MeterReading", "related " + self + "/IntervalBlock", "related RT/" + kind},
		`<MeterReading xmlns="http://naesb.org/espi"/>`,
	)
}

func readingType(id string, fields string) string {
	var b strings.Builder
	for _, f := range strings.Fields(fields) {
		name, value, _ := strings.Cut(f, "=")
		fmt.Fprintf(&b, "<%s>%s</%s>", name, value, name)
	}
	return entry(id, []string{"self RT/" + id}, `<ReadingType xmlns="http://naesb.org/espi">`+b.String()+`</ReadingType>`)
}

const delivered = "accumulationBehaviour=4 commodity=1 flowDirection=1 intervalLength=3600 powerOfTenMultiplier=0 uom=72"

// block returns an interval block that starts the given number of hours after 2020-01-01
// 00:00 UTC.
func block(point, reading string, hour, seconds int, values ...any) string {
	start := 1577836800 + 3600*hour
	var b strings.Builder
	fmt.Fprintf(&b, "<interval><duration>%d</duration><start>%d</start></interval>", seconds*len(values), start)
	for i, v := range values {
		fmt.Fprintf(&b, "<IntervalReading><timePeriod><duration>%d</duration><start>%d</start></timePeriod><value>%v</value></IntervalReading>", seconds, start+i*seconds, v)
	}
	up := "UP/" + point + "/MeterReading/" + reading + "/IntervalBlock"
	return entry(fmt.Sprint(point, reading, hour), []string{"self " + up + fmt.Sprint("/", hour), "up " + up}, `<IntervalBlock xmlns="http://naesb.org/espi">`+b.String()+`</IntervalBlock>`)
}

func localTime(offset, saving int) string {
	return entry("tz", []string{"self LTP/1"}, fmt.Sprintf(`<LocalTimeParameters xmlns="http://naesb.org/espi"><dstOffset>%d</dstOffset><tzOffset>%d</tzOffset></LocalTimeParameters>`, saving, offset))
}

// imported runs an import and collects its results in memory.
func imported(in *Import, err error) (meters []series.Meter, labels [][]string, notes string, _ error) {
	if err != nil {
		return nil, nil, "", err
	}
	err = in.Each(func(m series.Meter, l []string) error {
		meters, labels = append(meters, m), append(labels, l)
		return nil
	})
	return meters, labels, strings.Join(in.Notes(), "\n"), err
}

func greenButton(g GreenButton, files ...string) ([]series.Meter, string, error) {
	if g.Zone == "" {
		g.Zone = "UTC"
	}
	var sources []source
	for i, f := range files {
		sources = append(sources, inMemory(fmt.Sprintf("feed%d.xml", i), f))
	}
	meters, _, notes, err := imported(g.open(sources))
	return meters, notes, err
}

func TestGreenButton(t *testing.T) {
	point, reading, kind := usagePoint("p", 0), meterReading("p", "1", "a"), readingType("a", delivered)
	const start = "2020-01-01T00:00:00Z"
	for _, c := range []struct {
		name  string
		files []string
		load  []float64
	}{
		{"hourly", []string{feed(point, reading, kind, block("p", "1", 0, 3600, 450, 430, 418))}, []float64{.45, .43, .418}},
		{"in another order", []string{feed(block("p", "1", 0, 3600, 450), kind, reading, point)}, []float64{.45}},
		{"several blocks, a gap between", []string{feed(point, reading, kind, block("p", "1", 0, 3600, 1000), block("p", "1", 2, 3600, 2000))}, []float64{1, none, 2}},
		{"several files", []string{feed(kind), feed(point), feed(reading, block("p", "1", 0, 3600, 1000)), feed(block("p", "1", 1, 3600, 2000))}, []float64{1, 2}},
		{
			"repeated resources in the next month's file",
			[]string{feed(point, reading, kind, block("p", "1", 0, 3600, 1000)), feed(point, reading, kind, block("p", "1", 1, 3600, 2000))},
			[]float64{1, 2},
		},
		{"quarters", []string{feed(point, reading, kind, block("p", "1", 0, 900, 250, 500))}, []float64{1, 2}},
		{"kWh", []string{feed(point, reading, readingType("a", strings.Replace(delivered, "Multiplier=0", "Multiplier=3", 1)), block("p", "1", 0, 3600, 2))}, []float64{2}},
		{"hundredths of Wh", []string{feed(point, reading, readingType("a", strings.Replace(delivered, "Multiplier=0", "Multiplier=-2", 1)), block("p", "1", 0, 3600, 100000))}, []float64{1}},
		{"fractions, zeros and negative values", []string{feed(point, reading, kind, block("p", "1", 0, 3600, "12.5", "0", "-1000"))}, []float64{.0125, 0, -1}},
		{"empty value", []string{feed(point, reading, kind, block("p", "1", 0, 3600, 1000, "", 1000))}, []float64{1, none, 1}},
		{"watts", []string{feed(point, reading, readingType("a", "accumulationBehaviour=12 uom=38 intervalLength=900"), block("p", "1", 0, 900, 1500))}, []float64{1.5}},
		{"defaults of absent fields", []string{feed(point, reading, readingType("a", "uom=72"), block("p", "1", 0, 3600, 1000))}, []float64{1}},
		{
			"no links", []string{feed(
				entry("p", nil, `<UsagePoint/>`), entry("r", nil, `<MeterReading/>`), entry("t", nil, `<ReadingType><uom>72</uom></ReadingType>`),
				entry("b", nil, `<IntervalBlock><IntervalReading><timePeriod><duration>3600</duration><start>1577836800</start></timePeriod><value>7000</value></IntervalReading></IntervalBlock>`),
			)}, []float64{7},
		},
		{
			"readings without a period follow each other",
			[]string{feed(point, reading, kind, entry("b", []string{"up UP/p/MeterReading/1/IntervalBlock"},
				`<IntervalBlock><interval><duration>10800</duration><start>1577836800</start></interval><IntervalReading><value>1000</value></IntervalReading><IntervalReading><value>2000</value></IntervalReading></IntervalBlock>`))},
			[]float64{1, 2},
		},
		{
			"prefixes",
			[]string{`<ns1:feed xmlns:ns1="http://www.w3.org/2005/Atom" xmlns:ns0="http://naesb.org/espi">` +
				strings.NewReplacer("<entry", "<ns1:entry", "</entry", "</ns1:entry", "<IntervalB", "<ns0:IntervalB", "</IntervalB", "</ns0:IntervalB").Replace(
					point+reading+kind+block("p", "1", 0, 3600, 1000)) + "</ns1:feed>"},
			[]float64{1},
		},
		{"byte-order mark", []string{"\xef\xbb\xbf" + feed(point, reading, kind, block("p", "1", 0, 3600, 1000))}, []float64{1}},
		{"gzip", []string{compressed(t, feed(point, reading, kind, block("p", "1", 0, 3600, 1000)))}, []float64{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			meters, notes, err := greenButton(GreenButton{}, c.files...)
			if err != nil {
				t.Fatal(err)
			}
			if len(meters) != 1 || meters[0].ID != "p" || notes != "" {
				t.Fatalf("%d meters, first %+v, notes %s", len(meters), meters[0], notes)
			}
			check(t, meters[0], start, series.Faults{}, c.load...)
		})
	}
}

// TestGreenButtonChoice checks that the best of a usage point's meter readings is used, and
// that a note names the others.
func TestGreenButtonChoice(t *testing.T) {
	net := strings.Replace(delivered, "flowDirection=1", "flowDirection=4", 1)
	fed := strings.Replace(delivered, "flowDirection=1", "flowDirection=19", 1)
	register := strings.Replace(delivered, "accumulationBehaviour=4", "accumulationBehaviour=1", 1)
	for _, c := range []struct {
		name    string
		kinds   []string // the kinds of the meter readings, whose values are 1000, 2000, ... Wh
		service int
		want    float64
		note    string
	}{
		{"delivered before net", []string{net, delivered, fed}, 0, 2, "left out 1 of 3 meter readings: energy exported to the grid"},
		{"net if there is nothing better", []string{fed, net}, 0, 2, "energy exported to the grid (flowDirection 19)"},
		{"energy before power", []string{"uom=38", delivered}, 0, 2, "left out 1 of 2 meter readings: the usage point has a better one"},
		{"no registers", []string{register, delivered}, 0, 2, "a meter register, not energy per interval (accumulationBehaviour 1)"},
		{"no peak power", []string{"uom=38 dataQualifier=8", delivered}, 0, 2, "not mean power (accumulationBehaviour 0, dataQualifier 8)"},
		{"no reactive energy", []string{"uom=73", delivered}, 0, 2, "neither Wh nor W (uom 73)"},
		{"no gas", []string{"commodity=7 uom=42", delivered}, 0, 2, "not electricity (commodity 7)"},
		{"no odd multiplier", []string{delivered + " powerOfTenMultiplier=99", delivered}, 0, 2, "powerOfTenMultiplier 99"},
	} {
		entries := []string{usagePoint("p", c.service)}
		for i, k := range c.kinds {
			id := fmt.Sprint(i + 1)
			entries = append(entries, readingType(id, k), meterReading("p", id, id), block("p", id, 0, 3600, 1000*(i+1)))
		}
		meters, notes, err := greenButton(GreenButton{}, feed(entries...))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if len(meters) != 1 || !slices.Equal(meters[0].Load, []float32{float32(c.want)}) || !strings.Contains(notes, c.note) {
			t.Errorf("%s: %+v, %s", c.name, meters, notes)
		}
	}
	// A meter has two tariffs, each with readings for its own hours.
	meters, _, err := greenButton(GreenButton{}, feed(usagePoint("p", 0), readingType("a", delivered),
		meterReading("p", "day", "a"), block("p", "day", 1, 3600, 2000), meterReading("p", "night", "a"), block("p", "night", 0, 3600, 1000)))
	if err != nil {
		t.Fatal(err)
	}
	check(t, meters[0], "2020-01-01T00:00:00Z", series.Faults{OutOfOrder: 1}, 1, 2)
	// A second file has the same usage point with a new id, and another definition of the same
	// type.
	first := feed(usagePoint("p", 0), readingType("a", delivered), meterReading("p", "1", "a"), block("p", "1", 0, 3600, 2000))
	meters, notes, err := greenButton(GreenButton{}, first, strings.ReplaceAll(feed(usagePoint("p", 0)), "urn:uuid:p", "urn:uuid:q"))
	if err != nil || len(meters) != 1 || !strings.Contains(notes, "https://example.org/UP/p appears with several ids") {
		t.Errorf("%v, %s, %v", meters, notes, err)
	}
	if _, _, err = greenButton(GreenButton{}, first, feed(readingType("a", net))); err == nil || !strings.Contains(err.Error(), "contradicts its definition in another file") {
		t.Error(err)
	}
	// A feed contains the same readings twice.
	meters, _, err = greenButton(GreenButton{}, feed(usagePoint("p", 0), readingType("a", delivered),
		meterReading("p", "1", "a"), block("p", "1", 0, 3600, 2000), block("p", "1", 0, 3600, 2000), block("p", "1", 0, 3600, 1)))
	if err != nil {
		t.Fatal(err)
	}
	check(t, meters[0], "2020-01-01T00:00:00Z", series.Faults{Duplicates: 1, Conflicts: 1}, 2)
}

func TestGreenButtonIntervals(t *testing.T) {
	file := feed(readingType("a", delivered),
		usagePoint("hour", 0), meterReading("hour", "1", "a"), block("hour", "1", 0, 3600, 1000, 1000),
		usagePoint("quarter", 0), meterReading("quarter", "1", "a"), block("quarter", "1", 0, 900, 250, 250, 250))
	if _, _, err := greenButton(GreenButton{}, file); err == nil || !strings.Contains(err.Error(), "the meters have different intervals: 15m0s (1), 1h0m0s (1); choose one") {
		t.Error(err)
	}
	meters, notes, err := greenButton(GreenButton{Interval: 15 * time.Minute}, file)
	if err != nil || len(meters) != 1 || meters[0].ID != "quarter" || len(meters[0].Load) != 3 || notes != "left out 1 of 2 meters because their interval is not 15m0s" {
		t.Errorf("%+v, %s, %v", meters, notes, err)
	}
	if _, _, err := greenButton(GreenButton{Interval: time.Minute}, file); err == nil || !strings.Contains(err.Error(), "no meter has an interval of 1m0s; there are 15m0s (1), 1h0m0s (1)") {
		t.Error(err)
	}
	// Monthly readings are rejected, because they are not a load curve.
	month := feed(readingType("a", delivered), usagePoint("p", 0), meterReading("p", "1", "a"), block("p", "1", 0, 30*86400, 1000))
	if _, _, err := greenButton(GreenButton{}, month); err == nil || !strings.Contains(err.Error(), "an interval of 720h0m0s does not divide a day into equal parts") {
		t.Error(err)
	}
}

func TestGreenButtonErrors(t *testing.T) {
	point, reading, kind := usagePoint("p", 0), meterReading("p", "1", "a"), readingType("a", delivered)
	whole := feed(point, reading, kind, block("p", "1", 0, 3600, 450, 430, 418))
	for _, c := range []struct{ name, zone, file, want string }{
		{"empty", "", "", "feed0.xml: the file contains no XML"},
		{"truncated", "", whole[:len(whole)-200], "the file is truncated"},
		{"not XML", "", "a,b,c\n", "the file contains no XML"},
		{"not a feed", "", "<html></html>", "these files contain no electricity consumption"},
		{"UTF-16", "", "\xff\xfe<\x00", "the file is truncated"},
		{"another charset", "", `<?xml version="1.0" encoding="EBCDIC"?><feed/>`, "save it as UTF-8"},
		{"gas", "", feed(usagePoint("p", 1), reading, kind, block("p", "1", 0, 3600, 1)), "no MeterReading in Wh or W"},
		{"no type", "", feed(point, reading, block("p", "1", 0, 3600, 1)), "has no ReadingType"},
		{"no usage point", "", feed(reading, kind, block("p", "1", 0, 3600, 1)), "has no UsagePoint"},
		{"block without meter reading", "", feed(point, reading, meterReading("p", "2", "a"), kind, block("p", "3", 0, 3600, 1)), "has no MeterReading"},
		{"no readings", "", feed(point, reading, kind), "these files contain no readings"},
		{"not a number", "", feed(point, reading, kind, block("p", "1", 0, 3600, "12,5")), `value "12,5" is not a number`},
		{"not a finite number", "", feed(point, reading, kind, block("p", "1", 0, 3600, "Inf")), `value "Inf" is not a number`},
		{"too large", "", feed(point, reading, kind, block("p", "1", 0, 3600, "1e99")), "out of range"},
		{"not a time", "", strings.Replace(whole, "<start>1577836800</start></timePeriod>", "<start>now</start></timePeriod>", 1), "line "},
		{"a time far away", "", strings.Replace(whole, "<start>1577836800</start></timePeriod>", "<start>9223372036854775807</start></timePeriod>", 1), "an impossible period"},
		{"no start", "", feed(point, reading, kind, entry("b", []string{"up UP/p/MeterReading/1/IntervalBlock"}, `<IntervalBlock><IntervalReading><value>1</value></IntervalReading></IntervalBlock>`)), "a reading has no start"},
		{"another zone", "Europe/Berlin", feed(localTime(-28800, 3600), point, reading, kind), "zone Europe/Berlin is UTC+01:00 without daylight saving, but the files say UTC-08:00, with daylight saving of 1h0m0s in summer"},
		{"no zone", "?", feed(localTime(-25200, 0), point, reading, kind), "the files say UTC-07:00 without daylight saving"},
		{"wrong zone", "Local", whole, `zone "Local" is unknown`},
	} {
		g := GreenButton{Zone: c.zone}
		var err error
		if c.zone == "?" {
			_, err = GreenButton{}.open([]source{inMemory("x.xml", c.file)})
		} else {
			_, _, err = greenButton(g, c.file)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.name, err, c.want)
		}
	}
	if _, _, err := greenButton(GreenButton{Zone: "America/Los_Angeles"}, feed(localTime(-28800, 3600)), whole); err != nil {
		t.Error(err)
	}
}

// TestGreenButtonCharset checks that titles are converted to UTF-8. The bytes 0x80 to 0x9F
// are control characters in ISO 8859-1, but mostly printable characters in windows-1252.
func TestGreenButtonCharset(t *testing.T) {
	for _, c := range []struct{ charset, title, want string }{
		{"UTF-8", "Straße", "Straße"},
		{"US-ASCII", "Strasse", "Strasse"},
		{"ISO-8859-1", "Stra\xdfe \x80\x9f", "Straße \u0080\u009f"},
		{"latin1", "Caf\xe9", "Café"},
		{
			"windows-1252",
			"\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f",
			"€\ufffd‚ƒ„…†‡ˆ‰Š‹Œ\ufffdŽ\ufffd\ufffd‘’“”•–—˜™š›œ\ufffdžŸ",
		},
		{"Windows-1252", "Stra\xdfe \x8412\x94", "Straße „12”"},
		{"cp1252", "Caf\xe9\x85", "Café…"},
	} {
		point := strings.Replace(usagePoint("p", 0), "title of p", c.title, 1)
		file := feed(point, meterReading("p", "1", "a"), readingType("a", delivered), block("p", "1", 0, 3600, 1000))
		file = strings.Replace(file, "UTF-8", c.charset, 1)
		_, labels, _, err := imported(GreenButton{Zone: "UTC"}.open([]source{inMemory("feed.xml", file)}))
		if err != nil {
			t.Errorf("%s: %v", c.charset, err)
			continue
		}
		if len(labels) != 1 || labels[0][0] != c.want {
			t.Errorf("%s: labels %q, want %q", c.charset, labels, c.want)
		}
	}
}

func FuzzGreenButton(f *testing.F) {
	point, reading, kind := usagePoint("p", 0), meterReading("p", "1", "a"), readingType("a", delivered)
	f.Add(feed(point, reading, kind, block("p", "1", 0, 3600, 450, 430, 418), localTime(0, 3600)))
	f.Add(feed(point, reading, readingType("a", "uom=38 powerOfTenMultiplier=-3 dataQualifier=2"), block("p", "1", 0, 900, "1e3", "")))
	f.Add(feed(entry("p", nil, `<UsagePoint/>`), entry("r", nil, `<MeterReading/>`), entry("t", nil, `<ReadingType><uom>72</uom></ReadingType>`),
		entry("b", nil, `<IntervalBlock><interval><start>1</start></interval><IntervalReading><ReadingQuality><quality>8</quality></ReadingQuality><value>7</value></IntervalReading></IntervalBlock>`)))
	f.Add(`<?xml version="1.0" encoding="latin1"?><feed><entry><link rel="self" href="/"/><content><IntervalBlock/></content></entry></feed>`)
	f.Fuzz(func(t *testing.T, text string) {
		meters, _, err := greenButton(GreenButton{}, text)
		if err != nil {
			return
		}
		if len(meters) == 0 {
			t.Fatal("no meters and no error")
		}
		for _, m := range meters {
			if m.ID == "" || len(m.Load) == 0 || len(m.Load) > 1<<24+64*m.Faults.Rows {
				t.Fatalf("meter %q has %d steps of %d rows", m.ID, len(m.Load), m.Faults.Rows)
			}
		}
	})
}
