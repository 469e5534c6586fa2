package read

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"loadstar/internal/testkit"
	"loadstar/series"
)

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
		// From and to are days in the dataset's zone.
		{[]string{"zone: Europe/Berlin", "from: 2020-01-02", "to: 2020-01-03"}, "2020-01-01T23:00:00Z", 24},
		// If labels mark the end of the interval, a row labelled midnight belongs to the previous
		// day.
		{[]string{"stamp: end", "from: 2020-01-02", "to: 2020-01-03"}, "2020-01-02T22:00:00Z", 2},
	} {
		m := mustOpen(t, describe(t, c.lines...), text).Meter(0)
		if got := time.Unix(m.Start, 0).UTC().Format(time.RFC3339); got != c.start || len(m.Load) != c.want {
			t.Errorf("%v: starts %s with %d steps, want %s with %d", c.lines, got, len(m.Load), c.start, c.want)
		}
	}
	if _, err := openText(t, describe(t, "from: 2021-01-01"), text); err == nil || !strings.Contains(err.Error(), "no row matches") {
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
	// Without a filter, the table adds properties and removes no meter.
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
		{meters, `, where: {use: church}`, "no meter matches where: map[use:church]"},
		{meters, `, where: {core: 1, use: school}`, "no meter matches"},
		{meters, `, where: {type: office}`, "where: there is no column type; the columns are meter_id"},
		{meters, `, columns: {floors: floors}`, `line 3: floors: "x" is not a number`},
		{meters, `, columns: {wall_area: walls}`, "there is no column walls for wall_area"},
		{meters + "a,1,1,x,1\n", ``, "line 5: meter a appears twice"},
		{"id_,x\na,1\n", ``, "found no meter column"},
		{"meter_id,floor_area_m2\n,1\n", ``, "line 2: the meter is missing"},
		{"meter_id,floor_area_m2\na,\"1,5\"\n", ``, "contains a comma"},
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
		t.Errorf("a custom column: %+v, %v", w, err)
	}
	// An hourly value applies to four quarter hours, here the four before its label.
	w, err = open("zone: Europe/Berlin\ninterval: 15m", ", interval: 1h, stamp: end, zone: UTC", table)
	if err != nil {
		t.Fatal(err)
	}
	if c := w.Column("temperature"); w.Start != 1577836800-3600 || len(c) != 8 || c[3] != -1.5 || c[4] != -2 {
		t.Errorf("%+v", w)
	}
	for _, c := range []struct{ lines, spec, weather, want string }{
		{"zone: UTC\ninterval: 1h", ", interval: 15m", table, "weather: interval 15m0s is not a multiple of the load's interval 1h0m0s; average the weather"},
		{hourly, "", "timestamp,x\n2020-01-01 00:00,1\n", "weather.csv: found none of the columns temperature, wind, humidity, solar, holiday, direct, diffuse, wind_direction; the columns are timestamp, x"},
		{hourly, "", table + "2020-01-01 01:30,1,1,1,1\n", "1 of 3 rows are not a whole number of intervals of 1h0m0s apart"},
		{hourly, "", table + "2020-01-01 01:00,5,,1,1\n", "1 of 3 rows contradict an earlier temperature for the same time"},
		{hourly + "\nfrom: 2021-01-01", "", table, "weather: no row is within the selected dates"},
		{
			"zone: Europe/Berlin\ninterval: 1h", "", "timestamp,temp_c\n2020-03-29 01:00,1\n2020-03-29 02:00,1\n2020-03-29 03:00,1\n",
			"line 3: this local time does not exist: clocks skip it; if the weather is in standard time or UTC",
		},
		{hourly, ", where: {a: b}", table, "where is allowed only for the table of meters"},
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

// TestOpen checks that Open finds and reads descriptions, files and patterns on disk.
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
		{"name: x\ninterval: 1h\nload: {files: [a]}\n", "zone is missing: set the meters' time zone, for example zone: Europe/London or zone: UTC"},
		{"name: x\nzone: Mars/Olympus\ninterval: 1h\nload: {files: [a]}\n", `zone "Mars/Olympus" is unknown`},
		{"name: x\nzone: Local\ninterval: 1h\nload: {files: [a]}\n", `zone "Local" is unknown`},
		{"name: x\nzone: UTC\nload: {files: [a]}\n", `interval is ""; it must be a duration that divides a day, such as 15m`},
		{"name: x\nzone: UTC\ninterval: 7m\nload: {files: [a]}\n", `interval is "7m"`},
		{"name: x\nzone: UTC\ninterval: 1h\nclock: summer\nload: {files: [a]}\n", `clock is "summer"; it must be legal, standard, or the zone`},
		{"name: x\nzone: UTC\ninterval: 1h\nstamp: middle\nload: {files: [a]}\n", `stamp is "middle"; it must be one of start, end`},
		{"name: x\nzone: UTC\ninterval: 1h\nunit: kwh\nload: {files: [a]}\n", `unit is "kwh"; it must be one of kW`},
		{"name: x\nzone: UTC\ninterval: 1h\n", "load: files are missing"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], columns: {lod: x}}\n", "unknown column lod"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], columns: {load: }}\n", "line 4: load.columns.load has no value"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], where: {x: 1}}\n", "where is allowed only for the table of meters"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [a], zone: UTC}\n", "are allowed only for the dataset and its weather table"},
		{"name: x\nzone: UTC\ninterval: 1h\nlaod: {files: [a]}\n", "line 4: laod is not known; did you mean load?"},
		{"name: x\nzone: UTC\ninterval: 1h\nfrom: 1.1.2020\nload: {files: [a]}\n", `from is "1.1.2020"; it must be a day such as 2016-01-01`},
		{"name: x\nzone: UTC\ninterval: 1h\nfrom: 2020-01-02\nto: 2020-01-02\nload: {files: [a]}\n", "from 2020-01-02 is not before to 2020-01-02"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [none.csv]}\n", "none.csv: no such file"},
		{"name: x\nzone: UTC\ninterval: 1h\nload: {files: [none*.csv]}\n", "matches"},
		{"name: x\nzone: UTC\ninterval: 1h\nrooted: true\nload: {files: [a]}\n", "the data root is missing; give --root DIR or set LOADSTAR_DATA"},
	} {
		if _, err := open(put("bad/dataset.yaml", c.text), ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %s", c.text, err, c.want)
		}
	}
	if _, err := Load(filepath.Join(dir, "load")); err == nil || !strings.Contains(err.Error(), "run 'loadstar data init' to create one") {
		t.Error(err)
	}
}

// TestDataPack compares the number of rows and meters in the data pack with its READMEs.
func TestDataPack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, c := range []struct {
		name         string
		meters, rows int
		weather      int // the number of weather columns
	}{
		{"cambridge", 114, 4802040, 4},
		{"cambridge-core42", 42, 0, 4},
		{"hog", 49, 859656, 2},
		{"robin", 42, 736848, 1},
		{"resstock-ca", 100, 876000, 4},
		{"resstock-tx-core42", 42, 0, 4},
		{"resstock-vt", 47, 411720, 4},
		{"sgsc", 83, 1238401, 0},
		{"sgsc-core19", 19, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, root := testkit.Dataset(t, c.name)
			d, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			ds, err := Open(d, root)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
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
		})
	}
}

// BenchmarkRead measures the rows of load read per second from CSV and Parquet.
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
