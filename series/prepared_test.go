package series

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

func TestPreparedRoundTrip(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, clock := range []*time.Location{time.UTC, berlin, StandardTime(berlin)} {
		want, err := NewDataset(Dataset{
			Name: "fleet", Generated: true, Interval: 15 * time.Minute, Clock: clock, Country: "AU-NSW", StaticNames: []string{"floor_area", "roof_area"},
			Weather: Weather{Start: 900, Names: []string{"temperature", "wind"}, Columns: [][]float32{{1, 2, 3}, {4, 5, 6}}},
		}, []Meter{
			{ID: "a", Start: 1800, Load: []float32{1, 2, 3}, Static: []float32{7, 8}, Faults: Faults{Rows: 3}},
			{ID: "näher", Start: -900, Load: []float32{4}, Static: []float32{9, 10}, Faults: Faults{1, 2, 3, 4, 5, 6}},
			{ID: "empty", Start: 0, Static: []float32{0, 0}},
		})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "fleet.prepared")
		if err := WritePrepared(path, want); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 { // readings are private
			t.Errorf("%v, %v", info.Mode(), err)
		}
		got, closer, err := OpenPrepared(path)
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != want.Name || !got.Generated || got.Country != want.Country || got.Interval != want.Interval || !reflect.DeepEqual(got.Weather, want.Weather) || !reflect.DeepEqual(got.StaticNames, want.StaticNames) {
			t.Errorf("read %+v, want %+v", got, want)
		}
		for _, unix := range []int64{0, 1625000000} {
			g, w := time.Unix(unix, 0).In(got.Clock).Format(time.RFC3339), time.Unix(unix, 0).In(want.Clock).Format(time.RFC3339)
			if g != w {
				t.Errorf("local time %s, want %s", g, w)
			}
		}
		if got.Len() != want.Len() {
			t.Fatalf("%d meters, want %d", got.Len(), want.Len())
		}
		for i := range want.Len() {
			if !reflect.DeepEqual(got.Meter(i), want.Meter(i)) {
				t.Errorf("meter %d: %+v, want %+v", i, got.Meter(i), want.Meter(i))
			}
		}
		gf, gt := got.Span()
		wf, wt := want.Span()
		if gf != wf || gt != wt {
			t.Errorf("span %d to %d, want %d to %d", gf, gt, wf, wt)
		}
		if err := closer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzOpenPrepared checks that OpenPrepared returns an error or a dataset for any damaged
// file, and does not crash.
func FuzzOpenPrepared(f *testing.F) {
	d, err := NewDataset(Dataset{Name: "f", Interval: time.Hour, Clock: time.UTC, StaticNames: []string{"s"}, Weather: Weather{Names: []string{"t"}, Columns: [][]float32{{1, 2}}}},
		[]Meter{{ID: "a", Load: []float32{1, 2, 3}, Static: []float32{1}}, {ID: "b", Load: []float32{float32(math.NaN())}, Static: []float32{1}}})
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "f.prepared")
	if err := WritePrepared(path, d); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(whole[:20])
	f.Add([]byte(nil))
	huge := bytes.Clone(whole)
	binary.LittleEndian.PutUint64(huge[8:], math.MaxUint64)
	f.Add(huge)
	f.Fuzz(func(t *testing.T, in []byte) {
		path := filepath.Join(t.TempDir(), "f.prepared")
		if err := os.WriteFile(path, in, 0o600); err != nil {
			t.Fatal(err)
		}
		d, closer, err := OpenPrepared(path)
		if err != nil {
			return
		}
		defer closer.Close()
		var sum float32
		for i := range d.Len() {
			for _, v := range d.Meter(i).Load {
				sum += v
			}
		}
		for _, c := range d.Weather.Columns {
			for _, v := range c {
				sum += v
			}
		}
		_ = sum
	})
}
