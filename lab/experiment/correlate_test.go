package experiment

import (
	"math"
	"strings"
	"testing"
	"time"

	"loadstar/series"
)

func TestCorrelations(t *testing.T) {
	nan := float32(math.NaN())
	d, err := series.NewDataset(series.Dataset{
		Name: "d", Interval: time.Hour, Clock: time.UTC, StaticNames: []string{"area", "year", "none"},
		Weather: series.Weather{Start: 0, Names: []string{"temperature", "still"}, Columns: [][]float32{{9, 1, 2, 3, 4, 9}, {5, 5, 5, 5, 5, 5}}},
	}, []series.Meter{
		// The weather has a step before the first load and one after the last.
		{ID: "a", Start: 3600, Load: []float32{1, 2, 3, 4}, Static: []float32{10, 2000, nan}},
		{ID: "b", Start: 3600, Load: []float32{8, 6, nan, 2}, Static: []float32{30, 1990, nan}},
		{ID: "c", Start: 3600, Load: []float32{10, 10, 10, 14}, Static: []float32{nan, 1980, nan}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The mean loads are 2.5, 16/3 and 11. The correlations of the temperature with the loads
	// are 1, -1 and sqrt(.6).
	want := map[string]float64{"area": 1, "year": -.98198, "none": math.NaN(), "temperature": math.Sqrt(.6) / 3, "still": math.NaN()}
	got := Correlations(d)
	if len(got) != len(want) || got[0].Column != "area" || got[3].Column != "temperature" {
		t.Fatalf("%v", got)
	}
	for _, c := range got {
		if w := want[c.Column]; math.IsNaN(w) != math.IsNaN(c.Value) || math.Abs(c.Value-w) > 1e-4 {
			t.Errorf("%s: %v, not %v", c.Column, c.Value, w)
		}
	}

	l := Lab{Dir: t.TempDir(), Open: func(string) (*series.Dataset, error) { return d, nil }}
	s, err := ReadSpec([]byte("title: x\nparts:\n  - {name: table-i, data: correlations, datasets: [d]}\n"), false)
	if err != nil {
		t.Fatal(err)
	}
	results, err := l.Run(t.Context(), s)
	if err != nil || len(results) != 5 || results[1].Method != "year" || math.Abs(results[1].Figures["correlation"].Mean()+.98198) > 1e-4 {
		t.Errorf("%v, %v", results, err)
	}
	for text, want := range map[string]string{
		"{name: a, data: means, datasets: [d]}":                               "it must be correlations",
		"{name: a, data: correlations}":                                       "needs a name and datasets",
		"{name: a, data: correlations, datasets: [d], baselines: [ridge]}":    "has no methods, baselines",
		"{name: a, data: correlations, datasets: [d], methods: [{name: FL}]}": "has no methods, baselines",
	} {
		if _, err := ReadSpec([]byte("title: x\nparts:\n  - "+text+"\n"), false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
