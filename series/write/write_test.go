package write

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"loadstar/series"
	"loadstar/series/read"
)

const interval = 15 * time.Minute

var (
	nan   = float32(math.NaN())
	start = time.Date(2021, 10, 30, 22, 0, 0, 0, time.UTC).Unix()
)

// fleet returns a few meters with gaps, zeros and unusual names.
func fleet() []series.Meter {
	var meters []series.Meter
	for i, id := range []string{"a", "007", `b,"c"`, "Straße 5"} {
		m := series.Meter{ID: id, Start: start + int64(i)*900, Static: []float32{float32(i) + .1, nan}}
		for k := range 5000 {
			v := float32(k) / 7
			switch {
			case k%100 == 7:
				v = nan
			case k < 50:
				v = 0
			case k == 60:
				v = -1
			}
			m.Load = append(m.Load, v)
		}
		meters = append(meters, m)
	}
	return meters
}

func same(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return x == y || x != x && y != y })
}

// TestRoundTrip checks that reading written files returns the same values.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	meters := fleet()
	weather := series.Weather{
		Start: start, Names: []string{"temperature", "wind"},
		Columns: [][]float32{{1, nan, -3.5, 0}, {nan, 2, 3, 4}},
	}
	load, err := CreateLoad(filepath.Join(dir, "load.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := CreateMeters(filepath.Join(dir, "meters.csv"), []string{"type"}, []string{"floor_area", "wall_area"})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range meters {
		if err := load.Meter(m, interval); err != nil {
			t.Fatal(err)
		}
		if err := table.Meter(m, []string{"type " + strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "load.parquet")); err == nil {
		t.Error("the file exists before it is complete")
	}
	if err := load.Close(); err != nil {
		t.Fatal(err)
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	load.Discard() // has no effect after Close
	if err := Weather(filepath.Join(dir, "weather.parquet"), weather, interval); err != nil {
		t.Fatal(err)
	}
	d := &read.Description{
		Name: "x", Zone: "Europe/Berlin", Interval: "15m",
		Load: read.Table{Files: []string{"load.parquet"}}, Weather: &read.Table{Files: []string{"weather.parquet"}}, Meters: &read.Table{Files: []string{"meters.csv"}},
	}
	if err := d.Write(filepath.Join(dir, read.FileName)); err != nil {
		t.Fatal(err)
	}
	if d, err = read.Load(dir); err != nil {
		t.Fatal(err)
	}
	back, err := read.Open(d, "")
	if err != nil {
		t.Fatal(err)
	}
	if back.Len() != len(meters) {
		t.Fatalf("read %d meters", back.Len())
	}
	for i, m := range meters {
		b := back.Meter(i)
		faults := b.Faults
		faults.Rows -= len(m.Load)
		if b.ID != m.ID || b.Start != m.Start || !same(b.Load, m.Load) || !same(b.Static, m.Static) || faults != (series.Faults{}) {
			t.Errorf("meter %s became %s from %d with %d steps, statics %v, %+v", m.ID, b.ID, b.Start, len(b.Load), b.Static, b.Faults)
		}
	}
	if w := back.Weather; w.Start != weather.Start || !same(w.Column("temperature"), weather.Columns[0]) || !same(w.Column("wind"), weather.Columns[1]) {
		t.Errorf("the weather became %+v", w)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if hidden, _ := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(files) != 4 || len(hidden) > 0 {
		t.Errorf("files %v, %v", files, hidden)
	}
}

// TestSchema checks that the schema is the long format that other tools expect.
func TestSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "load.parquet")
	load, err := CreateLoad(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := load.Meter(fleet()[0], interval); err != nil {
		t.Fatal(err)
	}
	if err := load.Close(); err != nil {
		t.Fatal(err)
	}
	if err := load.Close(); err == nil {
		t.Error("the second Close succeeded")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %s", info.Mode())
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	const want = `message loadRow {
	required binary meter_id (STRING);
	required int64 timestamp (TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS));
	optional float load_kw;
}`
	if got := file.Schema().String(); got != want {
		t.Errorf("schema %s", got)
	}
	// 5000 rows of changing floats need little more space than the floats themselves.
	if info.Size() > 5000*4+4000 {
		t.Errorf("%d bytes", info.Size())
	}
}

func TestDiscard(t *testing.T) {
	dir := t.TempDir()
	load, err := CreateLoad(filepath.Join(dir, "load.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	load.Discard()
	table, err := CreateMeters(filepath.Join(dir, "meters.csv"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Meter(series.Meter{ID: "a", Static: []float32{1}}, nil); err == nil {
		t.Error("a value without a name was written")
	}
	table.Discard()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v left behind, %v", left, err)
	}
	if _, err := CreateLoad(filepath.Join(dir, "none", "load.parquet")); err == nil {
		t.Error("writing to a missing folder succeeded")
	}
}

// TestStreams checks that memory use does not grow with the number of meters.
func TestStreams(t *testing.T) {
	load, err := CreateLoad(filepath.Join(t.TempDir(), "load.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	defer load.Discard()
	m := series.Meter{Load: make([]float32, 35040)}
	var after [2]uint64
	for i := range after {
		for k := range 60 {
			m.ID = strconv.Itoa(100*i + k)
			for j := range m.Load {
				m.Load[j] = float32(j*k%1009) / 3
			}
			if err := load.Meter(m, interval); err != nil {
				t.Fatal(err)
			}
		}
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		after[i] = s.HeapAlloc
	}
	if after[1] > after[0]+8<<20 || after[1] > 100<<20 {
		t.Errorf("after 60 meters %d MB, after 120 %d MB", after[0]>>20, after[1]>>20)
	}
}
