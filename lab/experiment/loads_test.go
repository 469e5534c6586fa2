package experiment

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"loadstar/series"
)

const boxes = "title: x\nparts:\n  - {name: figure-2, data: loads, datasets: [d]}\n"

// describeLoads runs a part with the setting "data: loads" on the given meters.
func describeLoads(t *testing.T, meters []series.Meter) ([]Result, error) {
	t.Helper()
	d, err := series.NewDataset(series.Dataset{Name: "d", Interval: time.Hour, Clock: time.UTC, Generated: true}, meters)
	if err != nil {
		t.Fatal(err)
	}
	l := Lab{Dir: t.TempDir(), Open: func(string) (*series.Dataset, error) { return d, nil }}
	return l.Run(t.Context(), read(t, boxes, false))
}

func TestLoads(t *testing.T) {
	nan := float32(math.NaN())
	results, err := describeLoads(t, []series.Meter{
		{ID: "a", Load: []float32{8, nan, 0, 2, 6, 4}},
		{ID: "b", Load: []float32{nan, nan}},
		{ID: "c", Load: []float32{7}},
	})
	if err != nil || len(results) != 3 {
		t.Fatalf("%v, %v", results, err)
	}
	// Of the sorted loads 0, 2, 4, 6 and 8, the p % quantile is p/100 * 8.
	want := map[string]float64{"p5": 0.4, "p25": 2, "p50": 4, "p75": 6, "p95": 7.6, "mean": 4, "std": 2.828}
	if len(results[0].Figures) != len(want) || results[0].Method != "a" || results[0].Dataset != "d" || !results[0].Generated {
		t.Errorf("%+v", results[0])
	}
	for name, v := range want {
		if got := results[0].Figures[name].Mean(); math.Abs(got-v) > 1e-3 {
			t.Errorf("%s is %g, want %g", name, got, v)
		}
		if got := results[1].Figures[name].Mean(); !math.IsNaN(got) {
			t.Errorf("%s is %g without readings", name, got)
		}
		one := 7.0
		if name == "std" {
			one = 0
		}
		if got := results[2].Figures[name].Mean(); got != one {
			t.Errorf("%s of one reading is %g", name, got)
		}
	}

	var table bytes.Buffer
	if err := WriteTSV(&table, results); err != nil {
		t.Fatal(err)
	}
	again, err := ReadTSV(&table)
	if err != nil || len(again) != 3 || !reflect.DeepEqual(again[0].Figures["p5"], results[0].Figures["p5"]) {
		t.Errorf("%v, %v", again, err)
	}

	if _, err := describeLoads(t, []series.Meter{{ID: "a\tb", Load: []float32{1}}}); err == nil || !strings.Contains(err.Error(), "tab") {
		t.Errorf("a name with a tab: %v", err)
	}
}

// TestLoadsBounded checks that a large dataset yields a sample that includes its first and its
// last building, and the total number of buildings.
func TestLoadsBounded(t *testing.T) {
	for _, n := range []int{200, 201, 1000} {
		var meters []series.Meter
		for i := range n {
			meters = append(meters, series.Meter{ID: fmt.Sprint(i), Load: []float32{float32(i)}})
		}
		results, err := describeLoads(t, meters)
		if err != nil || len(results) != 200 || results[0].Method != "0" || results[199].Method != fmt.Sprint(n-1) {
			t.Fatalf("%d buildings: %d rows, %v", n, len(results), err)
		}
		seen := map[string]bool{}
		for _, r := range results {
			seen[r.Method] = true
			if all := r.Figures["buildings"]; n == 200 && all != nil || n > 200 && all.Mean() != float64(n) {
				t.Fatalf("%d buildings: the row of %s says %v", n, r.Method, all)
			}
		}
		if len(seen) != 200 {
			t.Errorf("%d buildings: %d different ones", n, len(seen))
		}
	}
}
