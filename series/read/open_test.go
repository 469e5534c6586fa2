package read

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"loadstar/internal/datatest"
	"loadstar/series"
)

// memory is a file that is not on disk.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

func inMemory[T string | []byte](name string, content T) source {
	return source{name, func() (file, error) { return memory{bytes.NewReader([]byte(content))}, nil }}
}

// describe parses a description of hourly kW in UTC with extra lines.
func describe(t testing.TB, lines ...string) *Description {
	t.Helper()
	text := "name: test\nload: {files: [load.csv]}\n"
	for _, f := range []string{"zone: UTC", "interval: 1h"} {
		key, _, _ := strings.Cut(f, " ")
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, key) }) {
			text += f + "\n"
		}
	}
	d, err := parse([]byte(text + strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func openText(t testing.TB, d *Description, load ...string) (*series.Dataset, error) {
	t.Helper()
	var in inputs
	for i, text := range load {
		in.load = append(in.load, inMemory(fmt.Sprintf("load%d.csv", i), text))
	}
	return d.read(in)
}

func mustOpen(t testing.TB, d *Description, load ...string) *series.Dataset {
	t.Helper()
	ds, err := openText(t, d, load...)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// check compares a meter with what is wanted: its start, its load, and its faults
// but for the number of rows.
func check(t *testing.T, m series.Meter, start string, faults series.Faults, load ...float64) {
	t.Helper()
	want, err := time.Parse(time.RFC3339, start)
	if err != nil {
		t.Fatal(err)
	}
	if m.Start != want.Unix() {
		t.Errorf("meter %s starts at %s, want %s", m.ID, time.Unix(m.Start, 0).UTC(), want)
	}
	m.Faults.Rows = 0
	if m.Faults != faults {
		t.Errorf("meter %s has faults %+v, want %+v", m.ID, m.Faults, faults)
	}
	if !slices.EqualFunc(m.Load, load, func(a float32, b float64) bool {
		return math.Abs(float64(a)-b) < 1e-6 || series.Missing(a) && math.IsNaN(b)
	}) {
		t.Errorf("meter %s has load %v, want %v", m.ID, m.Load, load)
	}
}

var none = math.NaN()

const simple = "meter_id,timestamp,load_kw\na,2020-01-01 00:00,1\na,2020-01-01 01:00,2.5\n"

func compressed(t testing.TB, s string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Ways to write the same two rows.
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
		{"what a spreadsheet leaves behind", simple + ",,\n,,\n"},
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

// What a reader must not pass over, and what it says.
func TestCSVErrors(t *testing.T) {
	const head = "meter_id,timestamp,load_kw\n"
	packed := compressed(t, head+strings.Repeat("a,2020-01-01 00:00,1\na,2020-01-01 01:00,2\n", 500))
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", []string{"load0.csv: the file is empty"}},
		{"only line ends", "\r\n\r\n", []string{"the file is empty"}},
		{"no rows", head, []string{"load: no row belongs to a wanted meter and time"}},
		{"truncated gzip", packed[:len(packed)/2], []string{"the file is cut off", "was it copied in full?"}},
		{"gzip without its checksum", packed[:len(packed)-4], []string{"the file is cut off"}},
		{"gzip header only", packed[:8], []string{"the file is cut off"}},
		{"damaged gzip", packed[:40] + "????" + packed[44:], []string{"load0.csv: "}},
		{"UTF-16", "\xff\xfem\x00e\x00", []string{"the file is UTF-16; save it as UTF-8"}},
		{"workbook", "PK\x03\x04xxxx", []string{"export it as CSV"}},
		{
			"decimal comma", "meter_id;timestamp;load_kw\na;2020-01-01 00:00;1,5\n",
			[]string{`line 2: load: "1,5" has a comma; export numbers with a decimal point`},
		},
		{
			"decimal comma between commas", head + "a,2020-01-01 00:00,1,5\n",
			[]string{"line 2 has 4 fields, the header has 3; if a number has a decimal comma, export it with a decimal point"},
		},
		{"decimal comma in quotes", head + "a,2020-01-01 00:00,\"1,5\"\n", []string{"has a comma"}},
		{"thousands", head + "a,2020-01-01 00:00,\"1,234.5\"\n", []string{"nothing between thousands"}},
		{"a field too few", head + "a,2020-01-01 00:00,1\na,2020-01-01 01:00\n", []string{"line 3 has 2 fields, the header has 3"}},
		{"not a number", head + "a,2020-01-01 00:00,x1\n", []string{`line 2: load: "x1" is not a number`}},
		{"infinite", head + "a,2020-01-01 00:00,Inf\n", []string{`"Inf" is not a number`}},
		{"too large", head + "a,2020-01-01 00:00,1e39\n", []string{"line 2: meter a: load 1e+39 is out of range"}},
		{"no meter", head + ",2020-01-01 00:00,1\n", []string{"line 2: the meter is missing"}},
		{"no time", head + "a,,1\n", []string{"line 2: the time is missing"}},
		{"a number for a time", head + "a,1577836800,1\n", []string{`time "1577836800" is not written like 2016-01-31 23:00`}},
		{"day first", head + "a,31.01.2020 00:00,1\n", []string{"is not written like"}},
		{"a year that is none", head + "a,1900-01-01 00:00,1\n", []string{"the year of time", "1971 to 2199"}},
		{"open quote", head + "a,2020-01-01 00:00,\"1\n" + strings.Repeat("a,2020-01-01 01:00,1\n", 5), []string{"line 2: a quote is not closed"}},
		{"quote in a field", head + "a,2020-01-01 00:00,\"1\"5\n", []string{"line 2: a quote ends within a field"}},
		{"a line without end", head + strings.Repeat("x", 2*maxLine), []string{"line 2 is longer than"}},
		{
			"no meter column", "timestamp,load_kw\n2020-01-01 00:00,1\n",
			[]string{"load0.csv: which column is the meter? there are timestamp, load_kw; name it under columns"},
		},
		{"no time column", "meter_id,when,load_kw\na,2020-01-01 00:00,1\n", []string{"which column is the time? there are meter_id, when, load_kw"}},
		{"no load column", "meter_id,timestamp,usage\na,2020-01-01 00:00,1\n", []string{"which column is the load?"}},
		{"two load columns", "meter_id,timestamp,load_kw,load_kw\na,2020-01-01 00:00,1,2\n", []string{"two columns are called load_kw"}},
		{"many columns", strings.Repeat("x,", 50) + "y\n", []string{"and 31 more"}},
		{"a far date", head + "a,1971-01-01 00:00,1\na,2199-01-01 00:00,1\n", nil}, // 2 M hours: allowed
		{"wrong interval", head + "a,2020-01-01 00:00,1\na,2020-01-01 00:15,1\na,2020-01-01 00:30,1\na,2020-01-01 00:45,1\n", []string{"not whole intervals of 1h0m0s apart", "is the interval right?"}},
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
				t.Fatal("it opens")
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
	if err == nil || !strings.Contains(err.Error(), "there is no column Verbrauch for load; there are Zeit, Zähler, Wert") {
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

// Rows in all sorts of order, and what is reported of it.
func TestRows(t *testing.T) {
	const head = "meter_id,timestamp,load_kw\n"
	for _, c := range []struct {
		name, text string
		faults     series.Faults
		load       []float64
	}{
		{"empty fields and words for nothing", "a,2020-01-01 00:00,1\na,2020-01-01 01:00,\na,2020-01-01 02:00,NaN\na,2020-01-01 03:00,NA\na,2020-01-01 04:00,null\na,2020-01-01 05:00,3\n", series.Faults{}, []float64{1, none, none, none, none, 3}},
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

// Names of meters are text, whatever they look like, and must outlive their row.
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

func TestFromTo(t *testing.T) {
	const text = "meter_id,timestamp,load_kw\na,2020-01-01 23:00,1\na,2020-01-02 00:00,2\na,2020-01-02 23:00,3\na,2020-01-03 00:00,4\n"
	for _, c := range []struct {
		lines []string
		start string
		want  int
	}{
		{nil, "2020-01-01T23:00:00Z", 26},
		{[]string{"from: 2020-01-02"}, "2020-01-02T00:00:00Z", 25},
		{[]string{"to: 2020-01-03"}, "2020-01-01T23:00:00Z", 25},
		{[]string{"from: 2020-01-02", "to: 2020-01-03"}, "2020-01-02T00:00:00Z", 24},
		// The days are local.
		{[]string{"zone: Europe/Berlin", "from: 2020-01-02", "to: 2020-01-03"}, "2020-01-01T23:00:00Z", 24},
		// An end-stamped midnight belongs to the day before.
		{[]string{"stamp: end", "from: 2020-01-02", "to: 2020-01-03"}, "2020-01-02T22:00:00Z", 2},
	} {
		m := mustOpen(t, describe(t, c.lines...), text).Meter(0)
		if got := time.Unix(m.Start, 0).UTC().Format(time.RFC3339); got != c.start || len(m.Load) != c.want {
			t.Errorf("%v: starts %s with %d steps, want %s with %d", c.lines, got, len(m.Load), c.start, c.want)
		}
	}
	if _, err := openText(t, describe(t, "from: 2021-01-01"), text); err == nil || !strings.Contains(err.Error(), "no row belongs") {
		t.Error(err)
	}
}

func TestMeters(t *testing.T) {
	const load = "meter_id,timestamp,load_kw\na,2020-01-01 00:00,1\nb,2020-01-01 00:00,2\nc,2020-01-01 00:00,3\n"
	const meters = "meter_id,floor_area_m2,floors,use,core\na,100.5,3,office,1\nb,,x,school,0\nd,7,1,office,1\n"
	open := func(meters, spec string) (*series.Dataset, error) {
		d, err := parse([]byte("name: x\nzone: UTC\ninterval: 1h\nload: {files: [l]}\nmeters: {files: [m]" + spec + "}\n"))
		if err != nil {
			return nil, err
		}
		return d.read(inputs{load: []source{inMemory("load.csv", load)}, meters: []source{inMemory("meters.csv", meters)}})
	}
	ids := func(ds *series.Dataset) (ids string) {
		for i := range ds.Len() {
			ids += ds.Meter(i).ID
		}
		return ids
	}
	// Without a filter the table adds to what is known and takes no meter away.
	ds, err := open(meters, "")
	if err != nil {
		t.Fatal(err)
	}
	if ids(ds) != "abc" || !slices.Equal(ds.StaticNames, []string{"floor_area"}) {
		t.Errorf("meters %s with %v", ids(ds), ds.StaticNames)
	}
	if a := ds.Meter(0).Static[0]; a != 100.5 || !series.Missing(ds.Meter(1).Static[0]) || !series.Missing(ds.Meter(2).Static[0]) {
		t.Errorf("floor areas %v %v %v", ds.Meter(0).Static, ds.Meter(1).Static, ds.Meter(2).Static)
	}
	for _, c := range []struct{ spec, want string }{
		{`, where: {use: office}`, "a"},
		{`, where: {core: 1}`, "a"},
		{`, where: {core: "0"}`, "b"},
		{`, where: {core: 1, use: office}`, "a"},
		{`, columns: {floors: floors}, where: {core: 1}`, "a"},
	} {
		if ds, err := open(meters, c.spec); err != nil || ids(ds) != c.want {
			t.Errorf("%s: %v, %v", c.spec, ds, err)
		}
	}
	for _, c := range []struct{ meters, spec, want string }{
		{meters, `, where: {use: church}`, "no meter has map[use:church]"},
		{meters, `, where: {core: 1, use: school}`, "no meter has"},
		{meters, `, where: {type: office}`, "where: there is no column type; there are meter_id"},
		{meters, `, columns: {floors: floors}`, `line 3: floors: "x" is not a number`},
		{meters, `, columns: {wall_area: walls}`, "there is no column walls for wall_area"},
		{meters + "a,1,1,x,1\n", ``, "line 5: meter a is there twice"},
		{"id_,x\na,1\n", ``, "which column is the meter?"},
		{"meter_id,floor_area_m2\n,1\n", ``, "line 2: the meter is missing"},
		{"meter_id,floor_area_m2\na,\"1,5\"\n", ``, "has a comma"},
	} {
		if _, err := open(c.meters, c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.spec, err, c.want)
		}
	}
}

func TestWeather(t *testing.T) {
	open := func(lines, spec string, weather ...string) (series.Weather, error) {
		d, err := parse([]byte("name: x\n" + lines + "\nload: {files: [l]}\nweather: {files: [w]" + spec + "}\n"))
		if err != nil {
			return series.Weather{}, err
		}
		in := inputs{load: []source{inMemory("load.csv", simple)}}
		for _, w := range weather {
			in.weather = append(in.weather, inMemory("weather.csv", w))
		}
		ds, err := d.read(in)
		if err != nil {
			return series.Weather{}, err
		}
		return ds.Weather, nil
	}
	const hourly = "zone: UTC\ninterval: 1h"
	const table = "timestamp,temp_c,wind_ms,holiday,dew\n2020-01-01 00:00,-1.5,3,0,9\n2020-01-01 01:00,-2,,1,8\n"
	w, err := open(hourly, "", table)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"temperature", "wind", "holiday"}; !slices.Equal(w.Names, want) {
		t.Errorf("names %v, want %v", w.Names, want)
	}
	if c := w.Column("temperature"); w.Start != 1577836800 || len(c) != 2 || c[0] != -1.5 || !series.Missing(w.Column("wind")[1]) {
		t.Errorf("%+v", w)
	}
	if w, err = open(hourly, ", columns: {dew_point: dew}", table); err != nil || w.Column("dew_point")[1] != 8 {
		t.Errorf("a column of one's own: %+v, %v", w, err)
	}
	// Hourly weather holds in each quarter of an hour, here up to its stamp.
	w, err = open("zone: Europe/Berlin\ninterval: 15m", ", interval: 1h, stamp: end, zone: UTC", table)
	if err != nil {
		t.Fatal(err)
	}
	if c := w.Column("temperature"); w.Start != 1577836800-3600 || len(c) != 8 || c[3] != -1.5 || c[4] != -2 {
		t.Errorf("%+v", w)
	}
	for _, c := range []struct{ lines, spec, weather, want string }{
		{"zone: UTC\ninterval: 1h", ", interval: 15m", table, "weather: interval 15m0s is not a multiple of the load's, 1h0m0s; average it"},
		{hourly, "", "timestamp,x\n2020-01-01 00:00,1\n", "weather.csv: which columns are temperature, wind, humidity, solar, holiday? there are timestamp, x"},
		{hourly, "", table + "2020-01-01 01:30,1,1,1,1\n", "1 of 3 rows are not whole intervals of 1h0m0s apart"},
		{hourly, "", table + "2020-01-01 01:00,5,,1,1\n", "1 of 3 rows give another temperature for a time that has one"},
		{hourly + "\nfrom: 2021-01-01", "", table, "weather: no row is within the time that is read"},
		{
			"zone: Europe/Berlin\ninterval: 1h", "", "timestamp,temp_c\n2020-03-29 01:00,1\n2020-03-29 02:00,1\n2020-03-29 03:00,1\n",
			"line 3: this local time does not exist: clocks skip it; is the weather in standard time or in UTC?",
		},
		{hourly, ", where: {a: b}", table, "where belongs to the table of meters"},
		{hourly, ", columns: {wind: gust}", table, "there is no column gust for wind"},
	} {
		if _, err := open(c.lines, c.spec, c.weather); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
	if _, err := open(hourly, "", table, "timestamp,temp_c\n2020-01-01 02:00,1\n"); err == nil || !strings.Contains(err.Error(), "its columns differ") {
		t.Error(err)
	}
}

// Descriptions, files and patterns on disk.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data [1]*")
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	put("load/1.csv", "meter_id,timestamp,load_kw\na,2020-01-01 00:00,1\n")
	put("load/2.csv", "meter_id,timestamp,load_kw\na,2020-01-01 01:00,2\n")
	open := func(path, root string) (*series.Dataset, error) {
		d, err := Load(path)
		if err != nil {
			return nil, err
		}
		return Open(d, root)
	}
	put("dataset.yaml", "name: x\nzone: UTC\ninterval: 1h\nload: {files: [load/*.csv]}\n")
	ds, err := open(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	check(t, ds.Meter(0), "2020-01-01T00:00:00Z", series.Faults{}, 1, 2)
	rooted := put("other/rooted.yaml", "name: x\nrooted: true\nzone: UTC\ninterval: 1h\nload: {files: [load/1.csv]}\n")
	if ds, err = open(rooted, dir); err != nil || len(ds.Meter(0).Load) != 1 {
		t.Error(err)
	}
	t.Setenv(RootEnv, dir)
	if _, err = open(rooted, ""); err != nil {
		t.Error(err)
	}
	t.Setenv(RootEnv, "")
	for _, c := range []struct{ text, want string }{
		{"", "name is missing"},
		{"zone: UTC\n", "name is missing"},
		{"name: x\ninterval: 1h\nload: {files: [a]}\n", "zone is missing: where are the meters? (zone: Europe/London, or zone: UTC)"},
		{"name: x\nzone: Mars/Olympus\ninterval: 1h\nload: {files: [a]}\n", `zone "Mars/Olympus" is not known`},
		{"name: x\nzone: Local\ninterval: 1h\nload: {files: [a]}\n", `zone "Local" is not known`},
		{"name: x\nzone: UTC\nload: {files: [a]}\n", `interval is ""; it is a duration that divides a day, such as 15m`},
		{"name: x\nzone: UTC\ninterval: 7m\nload: {files: [a]}\n", `interval is "7m"`},
		{"name: x\nzone: UTC\ninterval: 1h\nclock: summer\nload: {files: [a]}\n", `clock is "summer"; it is one of legal, standard`},
		{"name: x\nzone: UTC\ninterval: 1h\nstamp: middle\nload: {files: [a]}\n", `stamp is "middle"; it is one of start, end`},
		{"name: x\nzone: UTC\ninterval: 1h\nunit: kwh\nload: {files: [a]}\n", `unit is "kwh"; it is one of kW`},
		{"name: x\nzone: UTC\ninterval: 1h\n", "load: files are missing"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], columns: {lod: x}}\n", "a load table has no lod"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], columns: {load: }}\n", "line 4: load.columns.load has no value"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], where: {x: 1}}\n", "where belongs to the table of meters"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], zone: UTC}\n", "belong to the dataset, or to its weather"},
		{"name: x\nzone: UTC\ninterval: 1h\nlaod: {files: [a]}\n", "line 4: laod is not known; did you mean load?"},
		{"name: x\nzone: UTC\ninterval: 1h\nfrom: 1.1.2020\nload: {files: [a]}\n", `from is "1.1.2020"; it is a day such as 2016-01-01`},
		{"name: x\nzone: UTC\ninterval: 1h\nfrom: 2020-01-02\nto: 2020-01-02\nload: {files: [a]}\n", "from 2020-01-02 is not before to 2020-01-02"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [none.csv]}\n", "none.csv: no such file"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [none*.csv]}\n", "matches"},
		{"name: x\nzone: UTC\ninterval: 1h\nrooted: true\nload: {files: [a]}\n", "where is the data? give --root DIR or set LOADSTAR_DATA"},
	} {
		if _, err := open(put("bad/dataset.yaml", c.text), ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %s", c.text, err, c.want)
		}
	}
	if _, err := Load(filepath.Join(dir, "load")); err == nil || !strings.Contains(err.Error(), "'loadstar data init' writes one") {
		t.Error(err)
	}
}

func TestWriteDescription(t *testing.T) {
	d := &Description{
		Name: "x: y", Zone: "Europe/Berlin", Interval: "15m", Stamp: StampEnd, Unit: "kWh",
		Load:    Table{Files: []string{"load/*.csv"}, Columns: map[string]string{"meter": MeterIsFile}},
		Weather: &Table{Files: []string{"w.csv"}, Interval: "1h", Stamp: StampStart},
	}
	path := filepath.Join(t.TempDir(), FileName)
	if err := d.Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "stamp: end # a time is the start or the end of its interval\n") {
		t.Errorf("no comments:\n%s", text)
	}
	back, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if back.Name != d.Name || back.Stamp != d.Stamp || back.Clock != ClockLegal || back.Load.Columns["meter"] != MeterIsFile || back.Weather.Interval != "1h" {
		t.Errorf("came back as %+v", back)
	}
	if err := (&Description{Name: "x"}).Write(path); err == nil {
		t.Error("a description without a zone was written")
	}
}

// The committed descriptions are sound.
func TestCommitted(t *testing.T) {
	files, err := filepath.Glob("../../datasets/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		d, err := Load(f)
		if err != nil {
			t.Error(err)
		} else if d.Name != strings.TrimSuffix(filepath.Base(f), ".yaml") || !d.Rooted {
			t.Errorf("%s describes %s", f, d.Name)
		}
	}
}

// The sets of the data pack, with the rows and meters that their READMEs count.
func TestDataPack(t *testing.T) {
	if testing.Short() {
		t.Skip("seconds of reading")
	}
	root := datatest.Root(t)
	for _, c := range []struct {
		name         string
		meters, rows int
		weather      int // columns
	}{
		{"cambridge", 114, 4802040, 4},
		{"cambridge-core42", 42, 0, 4},
		{"hog", 49, 859656, 2},
		{"robin", 42, 736848, 2},
		{"resstock-ca", 100, 876000, 4},
		{"resstock-tx-core42", 42, 0, 4},
		{"resstock-vt", 47, 411720, 4},
		{"sgsc", 83, 1238401, 0},
		{"sgsc-core19", 19, 0, 0},
	} {
		d, err := Load(filepath.Join("..", "..", "datasets", c.name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		ds, err := Open(d, root)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		rows := 0
		for i := range ds.Len() {
			f := ds.Meter(i).Faults
			rows += f.Rows
			if f.Rows = 0; f != (series.Faults{}) {
				t.Errorf("%s: meter %s has %+v", c.name, ds.Meter(i).ID, f)
			}
		}
		if ds.Len() != c.meters || c.rows > 0 && rows != c.rows || len(ds.Weather.Names) != c.weather {
			t.Errorf("%s has %d meters in %d rows, weather %v", c.name, ds.Len(), rows, ds.Weather.Names)
		}
	}
}

// BenchmarkRead measures rows of load, as they come in CSV and in Parquet.
func BenchmarkRead(b *testing.B) {
	const meters, steps = 20, 8760
	var text strings.Builder
	text.WriteString("meter_id,timestamp,load_kw\n")
	var typed []row
	for m := range meters {
		for i := range steps {
			at := start.Add(time.Duration(i) * time.Hour)
			v := math.Round(1e4*math.Abs(math.Sin(float64(m*steps+i)))) / 100
			fmt.Fprintf(&text, "building_%d,%s,%g\n", m, at.Format("2006-01-02T15:04:05"), v)
			typed = append(typed, row{fmt.Sprint("building_", m), at.UnixMilli(), &v})
		}
	}
	for _, c := range []struct {
		name string
		in   source
	}{
		{"csv", inMemory("load.csv", text.String())},
		{"csv.gz", inMemory("load.csv.gz", compressed(b, text.String()))},
		{"parquet", inMemory("load.parquet", parquetFile(b, typed, parquet.Compression(&zstd.Codec{})))},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := describe(b, "zone: Europe/Berlin")
			for b.Loop() {
				if _, err := d.read(inputs{load: []source{c.in}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*meters*steps/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}
