package read

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"

	"loadstar/series"
)

// The readings that all exports contain are quarter hours in Berlin around the days on which
// clocks are put forward and back. One meter has a gap, and there are no readings in summer.
// Values are whole numbers of Wh, which all units can express.
var (
	exportMeters = []string{"Haus 1", "Mühle", "Nord"}
	exportFrom   = time.Date(2020, 3, 26, 0, 0, 0, 0, berlin())
	summerFrom   = time.Date(2020, 4, 1, 0, 0, 0, 0, berlin())
	summerTo     = time.Date(2020, 10, 22, 0, 0, 0, 0, berlin())
	exportTo     = time.Date(2020, 10, 28, 0, 0, 0, 0, berlin())
)

const exportStep = 15 * time.Minute

// berlin returns the zone of the readings.
var berlin = sync.OnceValue(func() *time.Location {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	return zone
})

// summer reports whether a time is in the months without readings.
func summer(at time.Time) bool {
	return !at.Before(summerFrom) && at.Before(summerTo)
}

// wattHours returns the energy of a meter in the interval that starts at a time, or -1 if there
// is no reading.
func wattHours(meter int, at time.Time) int {
	if summer(at) {
		return -1
	}
	gap := time.Date(2020, 3, 30, 5, 0, 0, 0, berlin())
	if meter == 1 && !at.Before(gap) && at.Before(gap.Add(7*exportStep)) {
		return -1
	}
	i := int(at.Sub(exportFrom) / exportStep)
	return (i*7919+meter*1237)%3001 + i%4*25
}

// export is one format in which the readings are exported.
type export struct {
	name string
	// date is the layout of a time, and clock is the layout of the time of day if that has its
	// own column. End means that labels mark the end of an interval, and late means that
	// midnight is written as 24:00 of the day before.
	date, clock string
	end, late   bool
	zone        *time.Location // Berlin if nil
	// value formats the energy of an interval in Wh.
	value func(wh int) string
	// counter means that values are cumulative sums.
	counter bool
	wide    bool
	before  string // the lines above the header
	header  string // with %s in place of the meters of a wide table
	units   string // the line below the header
	sep     string
	after   string // further fields of a row
	missing string // further fields of a row in the gap, which has the value 0
	encode  func(string) []byte
	split   func(meter int, at time.Time) string // the name of the file; export.csv if nil
	need    map[string]string                    // the answers
}

func (e export) label(at time.Time) string {
	if e.zone == nil {
		e.zone = berlin()
	}
	if e.end {
		at = at.Add(exportStep)
	}
	at = at.In(e.zone)
	late := e.late && at.Hour() == 0 && at.Minute() == 0
	if late {
		at = at.AddDate(0, 0, -1)
	}
	text := at.Format(e.date)
	if e.clock != "" {
		text += e.sep + at.Format(e.clock)
	}
	if late {
		text = strings.Replace(text, "00:00", "24:00", 1)
	}
	return text
}

// write writes the export into a folder.
func (e export) write(t testing.TB, dir string) {
	t.Helper()
	files := map[string]*strings.Builder{}
	file := func(meter int, at time.Time) *strings.Builder {
		name := "export.csv"
		if e.split != nil {
			name = e.split(meter, at)
		}
		if files[name] == nil {
			b := &strings.Builder{}
			header := e.header
			header = strings.ReplaceAll(header, "%s", strings.Join(exportMeters, e.sep))
			b.WriteString(e.before + header + "\r\n" + e.units)
			files[name] = b
		}
		return files[name]
	}
	counts := make([]int, len(exportMeters))
	row := func(meter int, at time.Time) (value string, ok bool) {
		wh := wattHours(meter, at)
		if !e.counter {
			if wh < 0 {
				return "", false
			}
			return e.value(wh), true
		}
		// The count at the start of an interval is unknown if the loads of this interval and of
		// the previous one are both unknown.
		ok = wh >= 0 || wattHours(meter, at.Add(-exportStep)) >= 0
		value = e.value(counts[meter])
		counts[meter] += max(wh, 0)
		return value, ok
	}
	end := exportTo
	if e.counter {
		end = end.Add(exportStep)
	}
	if e.wide {
		for at := exportFrom; at.Before(end); at = at.Add(exportStep) {
			if summer(at) && summer(at.Add(-exportStep)) {
				continue
			}
			b := file(0, at)
			b.WriteString(e.label(at))
			for m := range exportMeters {
				v, ok := row(m, at)
				if !ok {
					v = ""
				}
				b.WriteString(e.sep + v)
			}
			b.WriteString(e.after + "\r\n")
		}
	} else {
		for m, name := range exportMeters {
			for at := exportFrom; at.Before(end); at = at.Add(exportStep) {
				if summer(at) && summer(at.Add(-exportStep)) {
					continue
				}
				v, ok := row(m, at)
				after := e.after
				if !ok && e.missing == "" {
					continue
				} else if !ok {
					v, after = "0", e.missing
				}
				fields := []string{e.label(at), v}
				if e.split == nil || !strings.Contains(e.split(0, at), exportMeters[0]) {
					fields = slices.Insert(fields, 0, name)
				}
				file(m, at).WriteString(strings.Join(fields, e.sep) + after + "\r\n")
			}
		}
	}
	for name, b := range files {
		content := []byte(b.String())
		if e.encode != nil {
			content = e.encode(b.String())
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// number formats v divided by a power of ten, with the given number of decimals.
func number(v, digits int, decimal, thousands string) string {
	s := strconv.Itoa(v)
	for len(s) <= digits {
		s = "0" + s
	}
	whole, rest := s[:len(s)-digits], s[len(s)-digits:]
	for i := len(whole) - 3; i > 0 && thousands != ""; i -= 3 {
		whole = whole[:i] + thousands + whole[i:]
	}
	if digits == 0 {
		return whole
	}
	return whole + decimal + rest
}

func kwh(decimal string) func(int) string {
	return func(wh int) string { return number(wh, 3, decimal, "") }
}

func windows(s string) []byte {
	b, err := charmap.Windows1252.NewEncoder().Bytes([]byte(s))
	if err != nil {
		panic(err)
	}
	return b
}

func utf16(order unicode.Endianness, mark unicode.BOMPolicy) func(string) []byte {
	return func(s string) []byte {
		b, err := unicode.UTF16(order, mark).NewEncoder().Bytes([]byte(s))
		if err != nil {
			panic(err)
		}
		return b
	}
}

func marked(s string) []byte { return []byte("\ufeff" + s) }

var zoneOnly = map[string]string{"zone": "Europe/Berlin"}

func exports() []export {
	month := func(_ int, at time.Time) string { return at.In(berlin()).Format("2006-01") + ".csv" }
	perMeter := func(meter int, _ time.Time) string { return exportMeters[meter] + ".csv" }
	return []export{
		{
			name: "the usual names", header: "meter_id,timestamp,load_kw", sep: ",", date: "2006-01-02 15:04",
			value: func(wh int) string { return number(4*wh, 3, ".", "") }, need: zoneOnly,
		},
		{
			name: "German, wide, Windows-1252, preamble and units", encode: windows, wide: true, end: true, date: "02.01.2006 15:04", sep: ";",
			before: "Lastgang Straße 5\r\nZeitraum;01.03.2020 bis 31.10.2020\r\n\r\n", header: "Zeitstempel;%s;Summe", units: "dd.mm.yyyy hh:mm;kWh;kWh;kWh;kWh\r\n",
			value: kwh(","), after: ";1,5", need: zoneOnly,
		},
		{
			name: "German, long, date and time, 24:00, status", encode: windows, end: true, late: true, date: "02.01.2006", clock: "15:04", sep: ";",
			header: "Zählpunkt;Datum;Uhrzeit;Wirkarbeit (kWh);Status", value: kwh(","), after: ";W", missing: ";F", need: zoneOnly,
		},
		{
			name: "American, wide, 12 hours", wide: true, date: "1/2/2006 3:04:05 PM", sep: ",", header: "Date/Time,%s",
			value: func(wh int) string { return strconv.Itoa(4 * wh) }, need: map[string]string{"zone": "Europe/Berlin", "unit": "W"},
		},
		{
			name: "American, long, date and time, 12 hours", date: "01/02/2006", clock: "03:04 PM", sep: ",", header: "Meter Number,Date,Start Time,Usage (kWh),Estimated",
			value: kwh("."), after: ",N", need: zoneOnly,
		},
		{
			name: "French, UTF-16, tabs, thousands", encode: utf16(unicode.LittleEndian, unicode.UseBOM), date: "02/01/2006 15:04", sep: "\t",
			header: "PRM\tHorodate\tPuissance moyenne (W)\tNature", after: "\tRéel", value: func(wh int) string { return number(4*wh, 0, "", "\u202f") }, need: zoneOnly,
		},
		{
			name: "Spanish, hours to 24:00", end: true, late: true, date: "2006/01/02", clock: "15:04", sep: ";",
			header: "CUPS;Fecha;Hora;Consumo_kWh;Metodo_obtencion", after: ";Real", value: kwh(","), need: zoneOnly,
		},
		{
			name: "Dutch, wide, bars, Wh", wide: true, date: "02-01-2006 15:04", sep: "|", header: "Tijdstip|%s", units: "|Wh|Wh|Wh\r\n",
			value: strconv.Itoa, need: zoneOnly,
		},
		{
			name: "German, wide, UTF-16 big-endian, kW", wide: true, encode: utf16(unicode.BigEndian, unicode.UseBOM), date: "02.01.2006 15:04:05", sep: ";",
			before: "Einheit: kW\r\n", header: "Datum/Uhrzeit;%s", value: func(wh int) string { return number(4*wh, 3, ",", ".") }, need: zoneOnly,
		},
		{
			name: "counters, UTF-8 with a mark", counter: true, encode: marked, date: "02.01.2006 15:04", sep: ";", header: "Zählernummer;Zeitpunkt;Zählerstand kWh",
			value: func(wh int) string { return number(10000000+wh, 3, ",", ".") }, need: zoneOnly,
		},
		{
			name: "counters, wide, without a heading that says so", counter: true, wide: true, date: "2006-01-02T15:04:05", sep: ",", header: "time,%s",
			value: func(wh int) string { return number(wh, 3, ".", "") }, need: map[string]string{"zone": "Europe/Berlin", "unit": "kWh"},
		},
		{
			name: "UTC offsets", date: "2006-01-02T15:04:05-07:00", sep: ",", header: "unique_id,ds,y", value: kwh("."),
			need: map[string]string{"zone": "Europe/Berlin", "unit": "kWh"},
		},
		{
			name: "UTC, end of the interval", zone: time.UTC, end: true, date: "2006-01-02T15:04:05Z", sep: ",", header: "meter,period_end,kWh", value: kwh("."), need: zoneOnly,
		},
		{
			name: "standard time all year", zone: time.FixedZone("", 3600), date: "02.01.2006 15:04", sep: ";", header: "Zähler;Von;Bis;Verbrauch in kWh", encode: windows,
			value: func(wh int) string { return "02.01.2006 15:04;" + number(wh, 3, ",", "") }, need: map[string]string{"zone": "Etc/GMT-1"},
		},
		{
			name: "a file per meter", split: perMeter, date: "02.01.2006 15:04", sep: ";", header: "Zeit;Verbrauch [kWh]", value: kwh(","), need: zoneOnly,
		},
		{
			name: "a file per month", split: month, wide: true, date: "02.01.06 15:04", sep: ";", header: "Datum;%s;", units: ";kWh;kWh;kWh;\r\n", after: ";", value: kwh(","), need: zoneOnly,
		},
		{
			name: "MW, quoted decimal commas between commas", date: "20060102 15:04", sep: ",", header: `"EAN","Tijd van","Vermogen MW"`,
			value: func(wh int) string { return `"` + number(4*wh, 6, ",", "") + `"` }, need: zoneOnly,
		},
		{
			name: "thousands that may be decimals", date: "02.01.2006 15:04", sep: ";", header: "Messlokation;Zeit;Leistung W",
			value: func(wh int) string { return number(4*wh+0, 0, "", ".") }, need: map[string]string{"zone": "Europe/Berlin", "decimal": ","},
		},
		{
			name: "UTF-16 without a mark", encode: utf16(unicode.LittleEndian, unicode.IgnoreBOM), date: "02.01.2006", clock: "15.04", sep: "\t",
			header: "Kunde\tDatum\tZeit\tVerbrauch\tEinheit", after: "\tkWh", value: kwh(","), need: zoneOnly,
		},
		{
			name: "energy that was fed in beside it", date: "2006-01-02 15:04:05", sep: ",", header: "Meter,Start,Export kWh,Import kWh",
			value: func(wh int) string { return "7.5," + number(wh, 3, ".", "") }, need: zoneOnly,
		},
	}
}

// setupFor returns a setup in which the answers are given as flags.
func setupFor(need map[string]string) Setup {
	return Setup{
		Given: Description{Zone: need["zone"], Unit: need["unit"], Stamp: need["stamp"]},
		Hints: Hints{Format: Table{Date: need["date"], Decimal: need["decimal"]}},
	}
}

// common gives all exports the same settings, so that the prepared files can be equal.
func common(s Setup) Setup {
	s.Given.Name, s.Given.Country, s.Replace = "exports", "DE", true
	return s
}

// TestExports describes the same readings in many formats, and compares the prepared files.
func TestExports(t *testing.T) {
	var want []byte
	for _, e := range exports() {
		t.Run(e.name, func(t *testing.T) {
			dir := t.TempDir()
			e.write(t, dir)
			path := dir
			if e.split == nil {
				path = filepath.Join(dir, "export.csv")
			}
			// Without answers and without a terminal, the error lists the flags.
			_, err := common(Setup{}).Run(path)
			open := (*Unanswered)(nil)
			if !errors.As(err, &open) {
				t.Fatalf("without answers: %v", err)
			}
			var answers []string
			for _, flag := range []string{"zone", "date", "decimal", "unit", "stamp"} {
				answer, ok := e.need[flag]
				if ok {
					answers = append(answers, answer)
				}
				if strings.Contains(err.Error(), "--"+flag) != ok {
					t.Errorf("answers %v, error %v", e.need, err)
				}
			}
			if len(answers) > 2 {
				t.Errorf("%d questions", len(answers))
			}
			asked := common(Setup{})
			var out strings.Builder
			asked.Ask = Asker{In: strings.NewReader(strings.Join(answers, "\n") + "\n"), Out: &out}
			flags := common(setupFor(e.need))
			if e.zone != nil && e.zone != time.UTC {
				asked.Given.Clock, flags.Given.Clock = "Europe/Berlin", "Europe/Berlin"
			}
			for i, s := range []Setup{asked, flags} {
				got, err := s.Run(path)
				if err != nil {
					t.Fatal(err)
				}
				if questions := []int{len(answers), 0}[i]; got.Asked != questions || got.Asked > 2 {
					t.Errorf("%d questions, want %d: %s", got.Asked, questions, out.String())
				}
				if i == 0 {
					t.Logf("%s", strings.Join(got.Lines, "\n"))
				}
				// The dataset must be opened from the written description, not taken from memory.
				d, err := Load(dir)
				if err != nil {
					t.Fatal(err)
				}
				ds, err := Open(d, "")
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(t.TempDir(), "x.prepared")
				if err := series.WritePrepared(file, ds); err != nil {
					t.Fatal(err)
				}
				have, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if want == nil {
					want = have
					checkExport(t, ds)
				}
				if !bytes.Equal(have, want) {
					checkExport(t, ds)
					t.Errorf("the prepared file differs; %+v", ds.Meter(0).Faults)
				}
			}
		})
	}
}

// checkExport compares a dataset with the readings.
func checkExport(t *testing.T, ds *series.Dataset) {
	t.Helper()
	if ds.Len() != len(exportMeters) || ds.Interval != exportStep || ds.Clock.String() != "Europe/Berlin" {
		t.Fatalf("%d meters every %s in %s", ds.Len(), ds.Interval, ds.Clock)
	}
	for i, name := range exportMeters {
		m := ds.Meter(i)
		if steps := int(exportTo.Sub(exportFrom) / exportStep); m.ID != name || m.Start != exportFrom.Unix() || len(m.Load) != steps {
			t.Fatalf("meter %s from %s with %d steps, want %d", m.ID, time.Unix(m.Start, 0).UTC(), len(m.Load), steps)
		}
		for k, v := range m.Load {
			wh := wattHours(i, exportFrom.Add(time.Duration(k)*exportStep))
			if wh < 0 != series.Missing(v) || wh >= 0 && v != float32(float64(4*wh)/1000) {
				t.Fatalf("meter %s has %g at step %d, want %d Wh", name, v, k, wh)
			}
		}
	}
}
