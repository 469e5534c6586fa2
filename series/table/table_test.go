package table

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDaysIn compares daysIn with package time.
func TestDaysIn(t *testing.T) {
	for year := firstYear; year <= lastYear; year++ {
		for month := 1; month <= 12; month++ {
			if want := time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day(); daysIn(year, month) != want {
				t.Fatalf("%d-%02d has %d days, want %d", year, month, daysIn(year, month), want)
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		text    string
		decimal byte
		want    float64 // NaN for an error
	}{
		{"0,600", ',', 0.6},
		{"1.234,5", ',', 1234.5},
		{"1.234.567", ',', 1234567},
		{"-1 234,5", ',', -1234.5},
		{"1\u00a0234,5", ',', 1234.5},
		{"12\u202f234", ',', 12234},
		{"1'234.5", '.', 1234.5},
		{"1,234.5", '.', 1234.5},
		{"1,5e3", ',', 1500},
		{"+7", ',', 7},
		{",5", ',', 0.5},
		{"1.23,5", ',', math.NaN()},
		{"1.2345", ',', math.NaN()},
		{"1234.567", ',', math.NaN()},
		{"1,2,3", ',', math.NaN()},
		{"1,5", '.', math.NaN()},
		{"1..234", ',', math.NaN()},
		{"1.234 ,5", ',', math.NaN()},
		{"", ',', math.NaN()},
		{"-", ',', math.NaN()},
		{"inf", ',', math.NaN()},
		{"0x1p3", '.', math.NaN()},
		{strings.Repeat("1", 60), ',', math.NaN()},
	} {
		got, ok := ParseNumber([]byte(c.text), c.decimal)
		if math.IsNaN(c.want) == ok || ok && got != c.want {
			t.Errorf("%q with %q is %g, %t; want %g", c.text, c.decimal, got, ok, c.want)
		}
	}
}

// TestDates checks times that are not in the ISO format.
func TestDates(t *testing.T) {
	for _, c := range []struct{ pattern, text, want string }{
		{"dd.mm.yyyy", "31.01.2016 23:15", "2016-01-31T23:15:00Z"},
		{"dd.mm.yyyy", "1.2.2016 9:05", "2016-02-01T09:05:00Z"},
		{"dd.mm.yyyy", "31.01.2016", "2016-01-31T00:00:00Z"},
		{"dd.mm.yyyy", "31.01.2016 24:00", "2016-02-01T00:00:00Z"},
		{"dd.mm.yyyy", "31.01.2016, 23.15", "2016-01-31T23:15:00Z"},
		{"dd.mm.yyyy", "31.01.2016 00:00 - 00:15", "2016-01-31T00:00:00Z"},
		{"dd.mm.yyyy", "31.01.2016 23:00 - 01.02.2016 00:00", "2016-01-31T23:00:00Z"},
		{"dd.mm.yyyy", "31.01.2016 23:00:00+01:00", "2016-01-31T22:00:00Z"},
		{"mm/dd/yyyy", "1/31/2016 12:00:00 AM", "2016-01-31T00:00:00Z"},
		{"mm/dd/yyyy", "1/31/2016 12:15 pm", "2016-01-31T12:15:00Z"},
		{"mm/dd/yyyy", "1/31/2016 11:45 p. m.", "2016-01-31T23:45:00Z"},
		{"dd/mm/yy", "31/01/16 23h15", "2016-01-31T23:15:00Z"},
		{"dd-mm-yyyy", "31-01-2016 23:15:00.000", "2016-01-31T23:15:00Z"},
		{"yyyymmdd", "20160131", "2016-01-31T00:00:00Z"},
		{"yyyymmdd", "201601312315", "2016-01-31T23:15:00Z"},
		{"yyyymmdd", "20160131231530", "2016-01-31T23:15:30Z"},
		{"yyyymmdd", "20160131 23:15", "2016-01-31T23:15:00Z"},
		{"dd.mm.yyyy", "31/01/2016 23:15", ""},
		{"dd.mm.yyyy", "01.31.2016 23:15", ""},
		{"dd.mm.yyyy", "31.01.2016 25:00", ""},
		{"dd.mm.yyyy", "31.01.2016 24:15", ""},
		{"dd.mm.yyyy", "31.01.2016 00:00 - x", ""},
		{"dd.mm.yyyy", "31.01.2016x", ""},
		{"mm/dd/yyyy", "1/31/2016 13:00 PM", ""},
		{"mm/dd/yyyy", "1/31/2016 0:00 AM", ""},
		{"mm/dd/yyyy", "", ""},
		{"yyyymmdd", "201601", ""},
	} {
		dates, err := ParseDates(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		cell := Text([]byte(c.text))
		at, err := NewClock(time.UTC, 0, dates).Instant(&cell)
		if got := time.Unix(at.Unix, 0).UTC().Format(time.RFC3339); (err != nil) != (c.want == "") || err == nil && got != c.want {
			t.Errorf("%q as %s is %s, %v; want %q", c.text, c.pattern, got, err, c.want)
		}
	}
	for _, d := range AllDates() {
		if back, err := ParseDates(d.String()); err != nil || back != d {
			t.Errorf("%s becomes %s, %v", d, back, err)
		}
	}
	if _, err := ParseDates("dd mm"); err == nil {
		t.Error("an incomplete form was accepted")
	}
}

func TestJoin(t *testing.T) {
	clock := NewClock(time.UTC, 0, AllDates()[0])
	for _, c := range []struct{ day, at, want string }{
		{"31.01.2016", "23:15", "2016-01-31T23:15:00Z"},
		{"31.01.2016 00:00:00", "23:15:00", "2016-01-31T23:15:00Z"},
		{"31.01.2016", "24:00", "2016-02-01T00:00:00Z"},
		{"31.01.2016", "12:00 AM", "2016-01-31T00:00:00Z"},
		{"31.01.2016", "23:00 - 23:15", "2016-01-31T23:00:00Z"},
		{"31.01.2016 10:00", "23:15", ""},
		{"31.01.2016", "2315", ""},
		{"", "23:15", ""},
		{"31.01.2016", "", ""},
	} {
		day, at := Text([]byte(c.day)), Text([]byte(c.at))
		got, err := clock.Join(&day, &at)
		if s := time.Unix(got.Unix, 0).UTC().Format(time.RFC3339); (err != nil) != (c.want == "") || err == nil && s != c.want {
			t.Errorf("%q and %q are %s, %v; want %q", c.day, c.at, s, err, c.want)
		}
	}
}

func TestSplit(t *testing.T) {
	for line, want := range map[string][]string{
		`a;"b;c";`:                {"a", "b;c", ""},
		`="0123";"=""0123""";x`:   {"0123", "0123", "x"},
		`=1+2;=;a="b";"="`:        {"=1+2", "=", `a="b"`, "="},
		`"say ""yes""";"=""""";1`: {`say "yes"`, "", "1"},
	} {
		if got, err := Split([]byte(line), ';'); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
}

// TestFormats reads the same table in several encodings and with lines around it.
func TestFormats(t *testing.T) {
	utf16 := func(s string, big bool) string {
		var b strings.Builder
		for _, r := range s {
			low, high := byte(r), byte(r>>8)
			if big {
				low, high = high, low
			}
			b.WriteByte(low)
			b.WriteByte(high)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		text   string
		format Format
	}{
		"plain":            {"Zähler;Wert\na;1,5\n", Format{Decimal: ','}},
		"mark":             {"\xef\xbb\xbfZähler;Wert\r\na;1,5\r\n", Format{Decimal: ','}},
		"windows":          {"Z\xe4hler;Wert\na;1,5\n", Format{Decimal: ',', Encoding: "windows-1252"}},
		"utf-16 marked":    {utf16("\ufeffZähler;Wert\r\na;1,5\r\n", false), Format{Decimal: ','}},
		"utf-16 big":       {utf16("\ufeffZähler;Wert\na;1,5\n", true), Format{Decimal: ','}},
		"utf-16 unmarked":  {utf16("Zähler;Wert\na;1,5\n", false), Format{Decimal: ',', Encoding: "utf-16le"}},
		"preamble":         {"Export \"x\ny\n\nZähler;Wert\na;1,5\n", Format{Decimal: ',', Header: "Zähler"}},
		"units":            {"Zähler;Wert\n;kWh\na;1,5\n", Format{Decimal: ',', Skip: 1}},
		"trailing in rows": {"Zähler;Wert\na;1,5;\n", Format{Decimal: ','}},
		"trailing above":   {"Zähler;Wert;\na;1,5\n", Format{Decimal: ','}},
		"tabs":             {"Zähler\tWert\na\t1,5\n", Format{Decimal: ',', Delimiter: '\t'}},
	} {
		in, err := OpenCSV(strings.NewReader(c.text), c.format)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		rows := 0
		err = in.Each([]int{0, 1}, func(cells []Cell) error {
			rows++
			if v, err := cells[1].Value(); err != nil || v != 1.5 || string(cells[0].Name()) != "a" {
				t.Errorf("%s: %s, %g, %v", name, cells[0].Name(), v, err)
			}
			return nil
		})
		if err != nil || rows != 1 || in.Columns()[0] != "Zähler" {
			t.Errorf("%s: %d rows under %q, %v", name, rows, in.Columns(), err)
		}
	}
	for want, c := range map[string]struct {
		text   string
		format Format
	}{
		`no line has a field "x"`: {"a;b\n1;2\n", Format{Header: "x"}},
		`encoding is "cp1"`:       {"", Format{Encoding: "cp1"}},
		`decimal is`:              {"", Format{Decimal: 'x'}},
		`delimiter is`:            {"", Format{Delimiter: 'x'}},
		`skip is 21`:              {"", Format{Skip: 21}},
	} {
		if _, err := OpenCSV(strings.NewReader(c.text), c.format); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
