package experiment

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"loadstar/series"
)

const sizes = `
title: sizes
parts:
  - name: volume
    data: volume
    datasets: [two]
`

func TestVolume(t *testing.T) {
	missing := float32(math.NaN())
	start := time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC).Unix()
	d, err := series.NewDataset(series.Dataset{Name: "two", Interval: 30 * time.Minute, Clock: time.UTC}, []series.Meter{
		{ID: "a", Start: start, Load: []float32{0.5, missing, 1.25, 10}},
		{ID: "b", Start: start, Load: []float32{2, 3, 4, 5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	lab := Lab{Dir: t.TempDir(), Open: func(string) (*series.Dataset, error) { return d, nil }}
	results, err := lab.Run(context.Background(), read(t, sizes, false))
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 1 || results[0].Method != "readings" || results[0].Dataset != "two" {
		t.Fatalf("results: %v", results)
	}
	// A line is a time of 19 characters, a comma, the load, and a line break.
	const line = 21
	for name, v := range map[string]float64{"clients": 2, "hours": 3.5, "readings_float": 28, "readings_csv": 7*line + 3 + 4 + 2 + 4*1} {
		if got := results[0].Figures[name].Mean(); got != v {
			t.Errorf("%s is %g, want %g", name, got, v)
		}
	}
	if costs := lab.Cost(); len(costs) != 0 {
		t.Errorf("measuring cost %v", costs)
	}
}

// TestVolumeCompresses checks that the gzip size is the size of the smallest text. Equal loads
// take hardly any space, although each line has a different time.
func TestVolumeCompresses(t *testing.T) {
	d, err := series.NewDataset(series.Dataset{Name: "one", Interval: time.Hour, Clock: time.UTC}, []series.Meter{{ID: "a", Load: make([]float32, 5000)}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := (&Part{Name: "volume"}).volume(d)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Figures["readings_gzip"].Mean(); n < 20 || n > 100 {
		t.Errorf("5,000 equal readings take %g bytes", n)
	}
}

func TestVolumePart(t *testing.T) {
	for _, change := range [][2]string{
		{"data: volume", "data: weight"},
		{"datasets: [two]", "datasets: [two]\n    methods: [{name: a}]"},
		{"datasets: [two]", "datasets: [two]\n    baselines: [persistence]"},
	} {
		if _, err := ReadSpec([]byte(strings.Replace(sizes, change[0], change[1], 1)), false); err == nil {
			t.Errorf("%q instead of %q was accepted", change[1], change[0])
		}
	}
}
