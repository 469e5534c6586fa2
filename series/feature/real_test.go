package feature_test

import (
	"testing"

	"loadstar/internal/testkit"
	"loadstar/series"
	"loadstar/series/feature"
	"loadstar/series/read"
)

// TestRealData checks, for some meters of every kind of dataset, that the number of inputs is
// correct, that all inputs are finite and limited, and that most of them vary.
func TestRealData(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, c := range []struct {
		name  string
		width int // number of inputs of a forecast one step ahead
	}{
		{"sample", 140},
		{"cambridge-core42-2016-17", 140},
		{"hog-core42", 139}, // no wind
		{"resstock-ca-core42", 140},
		{"sgsc-core19", 133}, // no weather
	} {
		t.Run(c.name, func(t *testing.T) {
			path, root := testkit.Sample(t), ""
			if c.name != "sample" {
				path, root = testkit.Dataset(t, c.name)
			}
			description, err := read.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			d, err := read.Open(description, root)
			if err != nil {
				t.Fatal(err)
			}
			for _, targets := range []int{1, 24} {
				f, err := feature.NewFrame(d, series.Layout{Lookback: 168, Horizon: 1, Targets: targets}, series.DefaultSplit, nil, 0)
				if err != nil {
					t.Fatal(err)
				}
				if targets == 1 && f.Width() != c.width {
					t.Errorf("%s has %d inputs, want %d", c.name, f.Width(), c.width)
				}
				x, y := make([]float32, f.Width()), make([]float32, 1)
				for i := 0; i < d.Len(); i += 20 {
					m := d.Meter(i)
					r := f.Rows(m)
					if n := r.Len(series.All); n < len(m.Load)/3 {
						t.Errorf("%s: meter %s has %d origins in %d steps", c.name, m.ID, n, len(m.Load))
					}
					low, high := make([]float32, f.Width()), make([]float32, f.Width())
					for k := 0; k < r.Len(series.All); k += 5 {
						r.Gather(x, y, []series.Example{{Last: r.At(series.All, k), Target: k / 24 % targets}})
						for j, v := range x {
							if !(v >= -8 && v <= 8) || series.Missing(y[0]) {
								t.Fatalf("%s: meter %s, origin %d: input %s is %g, target %g", c.name, m.ID, r.At(series.All, k), f.Names()[j], v, y[0])
							}
							low[j], high[j] = min(low[j], v), max(high[j], v)
						}
					}
					for j, name := range f.Names() {
						if low[j] == high[j] && name != "wind" { // Cambridge's wind ends early
							t.Errorf("%s: meter %s: input %s is always %g", c.name, m.ID, name, low[j])
						}
					}
				}
			}
		})
	}
}
