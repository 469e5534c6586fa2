package read

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/table"
)

func TestParseTime(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // in UTC; times without a zone are in India, 5 h 30 min ahead
	}{
		{"2016-01-31 23:00", "2016-01-31T17:30:00Z"},
		{"2016-01-31T23:00", "2016-01-31T17:30:00Z"},
		{"2016-01-31T23:00:30", "2016-01-31T17:30:30Z"},
		{"2016-01-31 23:00:00.000", "2016-01-31T17:30:00Z"},
		{"2016-01-31 23:00:00,000000", "2016-01-31T17:30:00Z"},
		{"2016/01/31 23:00", "2016-01-31T17:30:00Z"},
		{"2016-01-31", "2016-01-30T18:30:00Z"},
		{"2016-01-31 24:00", "2016-01-31T18:30:00Z"},
		{"2016-02-29 24:00:00", "2016-02-29T18:30:00Z"},
		{"2016-02-29 12:00", "2016-02-29T06:30:00Z"},
		{"2000-02-29 12:00", "2000-02-29T06:30:00Z"},
		{"2016-12-31 24:00", "2016-12-31T18:30:00Z"},
		{"2016-01-31T23:00Z", "2016-01-31T23:00:00Z"},
		{"2016-01-31 23:00:00Z", "2016-01-31T23:00:00Z"},
		{"2016-01-31 23:00:00 Z", "2016-01-31T23:00:00Z"},
		{"2016-01-31T23:00:00+01:00", "2016-01-31T22:00:00Z"},
		{"2016-01-31T23:00:00-0530", "2016-02-01T04:30:00Z"},
		{"2016-01-31 23:00 +01", "2016-01-31T22:00:00Z"},
		{"2016-01-01T00:00:00.0+13:45", "2015-12-31T10:15:00Z"},
		{"2016-01-31T24:00Z", "2016-02-01T00:00:00Z"},

		{"", ""},
		{"2016", ""},
		{"2016-1-1", ""},
		{"2016-01-31 9:00", ""},
		{"2016-01/31", ""},
		{"20160131", ""},
		{"2016-00-10", ""},
		{"2016-13-10", ""},
		{"2016-01-00", ""},
		{"2016-01-32", ""},
		{"2015-02-29", ""},
		{"2100-02-29", ""},
		{"2016-04-31", ""},
		{"2016-01-31 24:01", ""},
		{"2016-01-31 25:00", ""},
		{"2016-01-31 10:60", ""},
		{"2016-01-31 10:00:60", ""},
		{"2016-01-31 10:00:00.5", ""},
		{"2016-01-31 10:00:00.", ""},
		{"2016-01-31 10", ""},
		{"2016-01-31T", ""},
		{"2016-01-31Z", ""},
		{"2016-01-31 10:00z", ""},
		{"2016-01-31 10:00ZZ", ""},
		{"2016-01-31 10:00+", ""},
		{"2016-01-31 10:00+1", ""},
		{"2016-01-31 10:00+01:", ""},
		{"2016-01-31 10:00+15:00", ""},
		{"2016-01-31 10:00+01:60", ""},
		{"2016-01-31 10:00 CET", ""},
		{"2016-01-31 10:00\x00", ""},
		{"1970-12-31 00:00", ""},
		{"2200-01-01 00:00", ""},
		{"0000-01-01 00:00", ""},
	} {
		d := describe(t, "zone: Asia/Kolkata")
		times, err := d.times()
		if err != nil {
			t.Fatal(err)
		}
		at, err := times.reader(table.Dates{}).Instant(new(table.Text([]byte(c.text))))
		if got := time.Unix(at.Unix, 0).UTC().Format(time.RFC3339); c.want != "" && (err != nil || got != c.want) {
			t.Errorf("%q is %s, %v; want %s", c.text, got, err, c.want)
		} else if c.want == "" && err == nil {
			t.Errorf("%q gives %s, want an error", c.text, got)
		}
	}
}

// TestDaylightSaving checks the instants of local times in a zone whose clocks change at
// 02:00.
func TestDaylightSaving(t *testing.T) {
	const head = "meter_id,timestamp,load_kw\n"
	rows := func(day string, labels ...string) string {
		var b strings.Builder
		b.WriteString(head)
		for i, l := range labels {
			fmt.Fprintf(&b, "a,%s %s,%d\n", day, l, i)
		}
		return b.String()
	}
	for _, c := range []struct {
		name   string
		lines  []string
		text   string
		start  string
		faults series.Faults
		load   []float64
	}{
		{
			"23 hours", nil, rows("2021-03-28", "00:00", "01:00", "03:00", "04:00"),
			"2021-03-27T23:00:00Z",
			series.Faults{},
			[]float64{0, 1, 2, 3},
		},
		{
			"an hour that does not exist", nil, rows("2021-03-28", "00:00", "01:00", "02:00", "03:00", "04:00"),
			"2021-03-27T23:00:00Z",
			series.Faults{Nonexistent: 1},
			[]float64{0, 1, 3, 4},
		},
		{
			"quarters that do not exist",
			[]string{"interval: 15m"},
			rows("2021-03-28", "01:45", "02:00", "02:15", "02:30", "02:45", "03:00"),
			"2021-03-28T00:45:00Z",
			series.Faults{Nonexistent: 4},
			[]float64{0, 5},
		},
		{
			"25 hours", nil, rows("2021-10-31", "01:00", "02:00", "02:00", "03:00"),
			"2021-10-30T23:00:00Z",
			series.Faults{},
			[]float64{0, 1, 2, 3},
		},
		{
			"25 hours in quarters",
			[]string{"interval: 15m"},
			rows("2021-10-31", "01:45", "02:00", "02:15", "02:30", "02:45", "02:00", "02:15", "02:30", "02:45", "03:00"),
			"2021-10-30T23:45:00Z",
			series.Faults{},
			[]float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
		},
		{
			"25 hours, sorted by label",
			[]string{"interval: 30m"},
			rows("2021-10-31", "01:30", "02:00", "02:00", "02:30", "02:30", "03:00"),
			"2021-10-30T23:30:00Z",
			series.Faults{OutOfOrder: 1},
			[]float64{0, 1, 3, 2, 4, 5},
		},
		{
			"25 hours, one of them missing", nil, rows("2021-10-31", "01:00", "02:00", "03:00"),
			"2021-10-30T23:00:00Z",
			series.Faults{},
			[]float64{0, 1, none, 2},
		},
		{
			"standard time runs through",
			[]string{"clock: standard"},
			rows("2021-03-28", "00:00", "01:00", "02:00", "03:00"),
			"2021-03-27T23:00:00Z",
			series.Faults{},
			[]float64{0, 1, 2, 3},
		},
		{
			"standard time in summer",
			[]string{"clock: standard"},
			rows("2021-07-01", "00:00"),
			"2021-06-30T23:00:00Z",
			series.Faults{},
			[]float64{0},
		},
		{
			// 03:00 is the end of the hour that starts at 01:00.
			"end-stamped, 23 hours",
			[]string{"stamp: end"},
			rows("2021-03-28", "01:00", "03:00", "04:00"),
			"2021-03-27T23:00:00Z",
			series.Faults{},
			[]float64{0, 1, 2},
		},
		{
			"end-stamped, 25 hours",
			[]string{"stamp: end"},
			rows("2021-10-31", "01:00", "02:00", "02:00", "03:00", "04:00"),
			"2021-10-30T22:00:00Z",
			series.Faults{},
			[]float64{0, 1, 2, 3, 4},
		},
		{
			"end-stamped midnight",
			[]string{"stamp: end"},
			head + "a,2021-05-01 23:00,1\na,2021-05-02 00:00,2\na,2021-05-02 01:00,3\n",
			"2021-05-01T20:00:00Z",
			series.Faults{},
			[]float64{1, 2, 3},
		},
		{
			"end-stamped midnight as 24:00",
			[]string{"stamp: end"},
			head + "a,2021-05-01 23:00,1\na,2021-05-01 24:00,2\na,2021-05-02 01:00,3\n",
			"2021-05-01T20:00:00Z",
			series.Faults{},
			[]float64{1, 2, 3},
		},
		{
			"24:00 before clocks change at midnight",
			[]string{"zone: America/Sao_Paulo", "stamp: end"},
			head + "a,2018-02-17 22:00,1\na,2018-02-17 23:00,2\na,2018-02-17 23:00,3\na,2018-02-17 24:00,4\na,2018-02-18 01:00,5\n",
			"2018-02-17T23:00:00Z",
			series.Faults{},
			[]float64{1, 2, 3, 4, 5},
		},
		{
			"a midnight that does not exist",
			[]string{"zone: America/Sao_Paulo"},
			head + "a,2018-11-03 23:00,1\na,2018-11-04 00:00,2\na,2018-11-04 01:00,3\n",
			"2018-11-04T02:00:00Z",
			series.Faults{Nonexistent: 1},
			[]float64{1, 3},
		},
		{
			"half an hour of daylight saving",
			[]string{"zone: Australia/Lord_Howe", "interval: 30m"},
			head + "a,2021-04-04 01:00,1\na,2021-04-04 01:30,2\na,2021-04-04 01:30,3\na,2021-04-04 02:00,4\n",
			"2021-04-03T14:00:00Z",
			series.Faults{},
			[]float64{1, 2, 3, 4},
		},
		{
			"offsets tell the hours apart", nil, head + "a,2021-10-31T02:00:00+02:00,1\na,2021-10-31T02:00:00+01:00,2\n",
			"2021-10-31T00:00:00Z",
			series.Faults{},
			[]float64{1, 2},
		},
		{
			"leap day", nil, head + "a,2020-02-28 23:00,1\na,2020-02-29 00:00,2\na,2020-02-29 23:00,3\na,2020-03-01 00:00,4\n",
			"2020-02-28T22:00:00Z",
			series.Faults{},
			slices.Concat([]float64{1, 2}, slices.Repeat([]float64{none}, 22), []float64{3, 4}),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := c.lines
			if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "zone") }) {
				lines = append(slices.Clone(lines), "zone: Europe/Berlin")
			}
			check(t, mustOpen(t, describe(t, lines...), c.text).Meter(0), c.start, c.faults, c.load...)
		})
	}
}

// TestYearInEveryForm checks that the same year of readings is read from all supported time
// formats.
func TestYearInEveryForm(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Adelaide", "America/Santiago", "Africa/Casablanca", "Asia/Kolkata", "Pacific/Chatham", "Europe/Dublin"} {
		for _, interval := range []time.Duration{time.Hour, 15 * time.Minute} {
			if interval < time.Hour && zone != "Europe/Berlin" && zone != "America/New_York" {
				continue
			}
			location, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			// The readings cover a leap year and a day, from local midnight to local
			// midnight.
			start := time.Date(2020, 1, 1, 0, 0, 0, 0, location)
			end := time.Date(2021, 1, 2, 0, 0, 0, 0, location)
			random := rand.New(rand.NewPCG(1, 2))
			var want []float32
			var utc, offset, local, ends, standard, backwards strings.Builder
			var reversed []string
			for _, b := range []*strings.Builder{&utc, &offset, &local, &ends, &standard, &backwards} {
				b.WriteString("unique_id,ds,y\n")
			}
			fixed := series.StandardTime(location)
			for at := start; at.Before(end); at = at.Add(interval) {
				v := float32(random.IntN(1000)) / 8
				want = append(want, v)
				fmt.Fprintf(&utc, "a,%s,%g\n", at.UTC().Format("2006-01-02T15:04:05Z"), v)
				fmt.Fprintf(&offset, "a,%s,%g\n", at.Format("2006-01-02 15:04:05-07:00"), v)
				fmt.Fprintf(&local, "a,%s,%g\n", at.Format(time.DateTime), v)
				fmt.Fprintf(&ends, "a,%s,%g\n", at.Add(interval).Format(time.DateTime), v)
				fmt.Fprintf(&standard, "a,%s,%g\n", at.In(fixed).Format("2006/01/02 15:04"), v)
				reversed = append(reversed, fmt.Sprintf("a,%s,%g\n", at.Format(time.DateTime), v))
			}
			slices.Reverse(reversed)
			backwards.WriteString(strings.Join(reversed, ""))
			for _, c := range []struct {
				name string
				text string
				line string
			}{
				{"UTC", utc.String(), "stamp: start"},
				{"offset", offset.String(), "stamp: start"},
				{"local", local.String(), "stamp: start"},
				{"local, end-stamped", ends.String(), "stamp: end"},
				{"standard time", standard.String(), "clock: standard"},
				{"local, newest first", backwards.String(), "stamp: start"},
			} {
				name := fmt.Sprintf("%s, %s, %s", zone, interval, c.name)
				m := mustOpen(t, describe(t, "zone: "+zone, "interval: "+interval.String(), c.line), c.text).Meter(0)
				if m.Start != start.Unix() {
					t.Errorf("%s: starts at %s", name, time.Unix(m.Start, 0).In(location))
				}
				if !slices.Equal(m.Load, want) {
					t.Errorf("%s: series differ: %d steps, want %d", name, len(m.Load), len(want))
				}
				f := m.Faults
				f.Rows, f.OutOfOrder = 0, 0
				if f != (series.Faults{}) {
					t.Errorf("%s: faults %+v", name, f)
				}
			}
		}
	}
}
