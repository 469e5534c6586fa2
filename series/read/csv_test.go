package read

import (
	"fmt"
	"strings"
	"testing"

	"loadstar/series"
)

// TestCSVForms checks that the same two rows are read from every supported CSV format.
func TestCSVForms(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"plain", simple},
		{"gzip", compressed(t, simple)},
		{"two gzip members", compressed(t, simple[:20]) + compressed(t, simple[20:])},
		{"byte-order mark", "\xef\xbb\xbf" + simple},
		{"gzip with byte-order mark", compressed(t, "\xef\xbb\xbf"+simple)},
		{"Windows line ends", strings.ReplaceAll(simple, "\n", "\r\n")},
		{"old Mac line ends", strings.ReplaceAll(simple, "\n", "\r")},
		{"mixed line ends", "meter_id,timestamp,load_kw\r\na,2020-01-01 00:00,1\ra,2020-01-01 01:00,2.5\n"},
		{"no last line end", strings.TrimSpace(simple)},
		{"empty lines", strings.ReplaceAll(simple, "\n", "\n\n  \n")},
		{"empty rows from a spreadsheet", simple + ",,\n,,\n"},
		{"semicolons", strings.ReplaceAll(simple, ",", ";")},
		{"tabs", strings.ReplaceAll(simple, ",", "\t")},
		{"bars", strings.ReplaceAll(simple, ",", "|")},
		{"spaces", strings.ReplaceAll(simple, ",", " , ")},
		{"quotes", "\"meter_id\",\"timestamp\",\"load_kw\"\n\"a\",\"2020-01-01 00:00\",\"1\"\n\"a\",\"2020-01-01 01:00\",\"2.5\"\n"},
		{"quoted delimiter", "\"note\",meter_id,timestamp,load_kw\n\"x, \"\"y\"\"\",a,2020-01-01 00:00,1\n,a,2020-01-01 01:00,2.5\n"},
		{"more columns, in another order", "load_kw,x,timestamp,meter_id\n1,?,2020-01-01 00:00,a\n2.5,?,2020-01-01 01:00,a\n"},
		{"names in capitals", "Meter_ID,TIMESTAMP,Load_kW\na,2020-01-01 00:00,1\na,2020-01-01 01:00,2.5\n"},
		{"Nixtla", "unique_id,ds,y\na,2020-01-01 00:00:00,1\na,2020-01-01 01:00:00,2.5\n"},
		{"exponents", "unique_id,ds,y\na,2020-01-01T00:00,10e-1\na,2020-01-01T01:00,.25E1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := mustOpen(t, describe(t), c.text)
			if ds.Len() != 1 || ds.Meter(0).ID != "a" {
				t.Fatalf("%d meters, the first is %q", ds.Len(), ds.Meter(0).ID)
			}
			check(t, ds.Meter(0), "2020-01-01T00:00:00Z", series.Faults{}, 1, 2.5)
		})
	}
}

// TestCSVErrors checks that faulty files give helpful errors.
func TestCSVErrors(t *testing.T) {
	const head = "meter_id,timestamp,load_kw\n"
	packed := compressed(t, head+strings.Repeat("a,2020-01-01 00:00,1\na,2020-01-01 01:00,2\n", 500))
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", []string{"load0.csv: the file is empty"}},
		{"only line ends", "\r\n\r\n", []string{"the file is empty"}},
		{"no rows", head, []string{"load: no row matches the selected meters and dates"}},
		{"truncated gzip", packed[:len(packed)/2], []string{"the file is truncated", "was it copied completely?"}},
		{"gzip without its checksum", packed[:len(packed)-4], []string{"the file is truncated"}},
		{"gzip header only", packed[:8], []string{"the file is truncated"}},
		{"damaged gzip", packed[:40] + "????" + packed[44:], []string{"load0.csv: "}},
		{"UTF-16", "\xff\xfem\x00e\x00", []string{"found no time column; the columns are me"}},
		{"workbook", "PK\x03\x04xxxx", []string{"export it as CSV"}},
		{
			"decimal comma", "meter_id;timestamp;load_kw\na;2020-01-01 00:00;1,5\n",
			[]string{`line 2: load: "1,5" contains a comma; for a decimal comma write decimal`},
		},
		{
			"decimal comma between commas", head + "a,2020-01-01 00:00,1,5\n",
			[]string{"line 2 has 4 fields, the header has 3; a number with a decimal comma must be in quotes"},
		},
		{"decimal comma in quotes", head + "a,2020-01-01 00:00,\"1,5\"\n", []string{"contains a comma"}},
		{"thousands", head + "a,2020-01-01 00:00,\"1,234.5\"\n", []string{"for thousands separators decimal"}},
		{"a field too few", head + "a,2020-01-01 00:00,1\na,2020-01-01 01:00\n", []string{"line 3 has 2 fields, the header has 3"}},
		{"not a number", head + "a,2020-01-01 00:00,x1\n", []string{`line 2: load: "x1" is not a number`}},
		{"infinite", head + "a,2020-01-01 00:00,Inf\n", []string{`"Inf" is not a number`}},
		{"too large", head + "a,2020-01-01 00:00,1e39\n", []string{"line 2: meter a: load 1e+39 is out of range"}},
		{"no meter", head + ",2020-01-01 00:00,1\n", []string{"line 2: the meter is missing"}},
		{"no time", head + "a,,1\n", []string{"line 2: the time is missing"}},
		{"a number for a time", head + "a,1577836800,1\n", []string{`time "1577836800" is not in the format 2016-01-31 23:00`}},
		{"day first", head + "a,31.01.2020 00:00,1\n", []string{"is not in the format"}},
		{"an implausible year", head + "a,1900-01-01 00:00,1\n", []string{"the year of time", "1971 to 2199"}},
		{"open quote", head + "a,2020-01-01 00:00,\"1\n" + strings.Repeat("a,2020-01-01 01:00,1\n", 5), []string{"line 2: a quote is not closed"}},
		{"quote in a field", head + "a,2020-01-01 00:00,\"1\"5\n", []string{"line 2: a closing quote is inside a field"}},
		{"an endless line", head + strings.Repeat("x", 2*1<<18), []string{"line 2 is longer than"}},
		{
			"no meter column", "timestamp,load_kw\n2020-01-01 00:00,1\n",
			[]string{"load0.csv: found no meter column; the columns are timestamp, load_kw; name it under columns"},
		},
		{"no time column", "meter_id,when,load_kw\na,2020-01-01 00:00,1\n", []string{"found no time column; the columns are meter_id, when, load_kw"}},
		{"no load column", "meter_id,timestamp,usage\na,2020-01-01 00:00,1\n", []string{"found no load column"}},
		{"two load columns", "meter_id,timestamp,load_kw,load_kw\na,2020-01-01 00:00,1,2\n", []string{"two columns are named load_kw"}},
		{"many columns", strings.Repeat("x,", 50) + "y\n", []string{"and 31 more"}},
		{"a far date", head + "a,1971-01-01 00:00,1\na,2199-01-01 00:00,1\n", nil}, // 2 M hours: allowed
		{"wrong interval", head + "a,2020-01-01 00:00,1\na,2020-01-01 00:15,1\na,2020-01-01 00:30,1\na,2020-01-01 00:45,1\n", []string{"not a whole number of intervals of 1h0m0s apart", "check the interval"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := openText(t, describe(t), c.text)
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestColumns(t *testing.T) {
	d, err := parse([]byte("name: x\nzone: UTC\ninterval: 15m\nunit: kWh\nload:\n  files: [x]\n  columns: {meter: Zähler, time: Zeit, load: Verbrauch}\n"))
	if err != nil {
		t.Fatal(err)
	}
	ds := mustOpen(t, d, "Zeit;Zähler;Verbrauch\n2020-02-28 23:45;7;1\n2020-02-29 00:00;7;2\n")
	check(t, ds.Meter(0), "2020-02-28T23:45:00Z", series.Faults{}, 4, 8)
	_, err = openText(t, d, "Zeit;Zähler;Wert\n2020-02-28 23:45;7;1\n")
	if err == nil || !strings.Contains(err.Error(), "there is no column Verbrauch for load; the columns are Zeit, Zähler, Wert") {
		t.Error(err)
	}
}

func TestMeterIsFile(t *testing.T) {
	d, err := parse([]byte("name: x\nzone: UTC\ninterval: 1h\nload: {files: [x], columns: {meter: (file name)}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	const text = "timestamp,load_kw\n2020-01-01 00:00,1\n"
	ds, err := d.read(inputs{load: []source{inMemory("house 1.csv.gz", compressed(t, text)), inMemory("b.csv", text)}})
	if err != nil {
		t.Fatal(err)
	}
	if ds.Len() != 2 || ds.Meter(0).ID != "house 1" || ds.Meter(1).ID != "b" {
		t.Errorf("%d meters: %s", ds.Len(), ds.Meter(0).ID)
	}
	check(t, ds.Meter(1), "2020-01-01T00:00:00Z", series.Faults{}, 1)
}

func TestUnits(t *testing.T) {
	for unit, want := range map[string]float64{"kW": 8, "W": 0.008, "MW": 8000, "kWh": 32, "Wh": 0.032, "MWh": 32000} {
		ds := mustOpen(t, describe(t, "interval: 15m", "unit: "+unit), "unique_id,ds,y\na,2020-01-01 00:00,8\n")
		check(t, ds.Meter(0), "2020-01-01T00:00:00Z", series.Faults{}, want)
	}
	ds := mustOpen(t, describe(t, "unit: kWh"), "unique_id,ds,y\na,2020-01-01 00:00,8\n")
	check(t, ds.Meter(0), "2020-01-01T00:00:00Z", series.Faults{}, 8)
}

// TestRows checks the fault counts that the reader reports for faulty rows.
func TestRows(t *testing.T) {
	const head = "meter_id,timestamp,load_kw\n"
	for _, c := range []struct {
		name, text string
		faults     series.Faults
		load       []float64
	}{
		{"empty fields and words for missing values", "a,2020-01-01 00:00,1\na,2020-01-01 01:00,\na,2020-01-01 02:00,NaN\na,2020-01-01 03:00,NA\na,2020-01-01 04:00,null\na,2020-01-01 05:00,3\n", series.Faults{}, []float64{1, none, none, none, none, 3}},
		{"gap", "a,2020-01-01 00:00,1\na,2020-01-01 03:00,3\n", series.Faults{}, []float64{1, none, none, 3}},
		{"duplicate", "a,2020-01-01 00:00,1\na,2020-01-01 00:00,1\na,2020-01-01 01:00,2\n", series.Faults{Duplicates: 1}, []float64{1, 2}},
		{"conflict", "a,2020-01-01 00:00,1\na,2020-01-01 00:00,7\na,2020-01-01 01:00,2\n", series.Faults{Conflicts: 1}, []float64{1, 2}},
		{"out of order", "a,2020-01-01 00:00,1\na,2020-01-01 02:00,3\na,2020-01-01 01:00,2\n", series.Faults{OutOfOrder: 1}, []float64{1, 2, 3}},
		{"before the first", "a,2020-01-01 01:00,2\na,2020-01-01 02:00,3\na,2020-01-01 00:00,1\n", series.Faults{OutOfOrder: 1}, []float64{1, 2, 3}},
		{"off the grid", "a,2020-01-01 00:00,1\na,2020-01-01 00:20,9\na,2020-01-01 01:00,2\n", series.Faults{OffGrid: 1}, []float64{1, 2}},
		{"other meters between them", "a,2020-01-01 00:00,1\nb,2020-01-01 00:00,10\na,2020-01-01 01:00,2\nb,2020-01-01 01:00,20\n", series.Faults{}, []float64{1, 2}},
		{"negative and zero", "a,2020-01-01 00:00,-1\na,2020-01-01 01:00,0\n", series.Faults{}, []float64{-1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, mustOpen(t, describe(t), head+c.text).Meter(0), "2020-01-01T00:00:00Z", c.faults, c.load...)
		})
	}
}

// TestMeterNames checks that meter names are strings even if they look like numbers, and that
// they stay valid after their row has been read.
func TestMeterNames(t *testing.T) {
	var text strings.Builder
	text.WriteString("meter_id,timestamp,load_kw\n")
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprintf("%05d", i))
	}
	want = append(want, "NA", "a,b", `say "hi"`, "9007199254740993", "1e3")
	for hour := range 3 {
		for _, id := range want {
			fmt.Fprintf(&text, "\"%s\",2020-01-01 %02d:00,1\n", strings.ReplaceAll(id, `"`, `""`), hour)
		}
	}
	ds := mustOpen(t, describe(t), text.String())
	for i, id := range want {
		if got := ds.Meter(i).ID; got != id {
			t.Errorf("meter %d is %q, want %q", i, got, id)
		}
	}
}

func TestSeveralFiles(t *testing.T) {
	d := describe(t)
	ds := mustOpen(
		t, d, "meter_id,timestamp,load_kw\na,2020-01-01 00:00,1\n",
		"y;unique_id;ds\n2;a;2020-01-01T01:00:00Z\n3;b;2020-01-01T01:00:00Z\n",
	)
	check(t, ds.Meter(0), "2020-01-01T00:00:00Z", series.Faults{}, 1, 2)
	check(t, ds.Meter(1), "2020-01-01T01:00:00Z", series.Faults{}, 3)
}
