package metric

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

func TestSpread(t *testing.T) {
	n := Number(nan)
	for _, c := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"nobody", nil, Spread{n, n, n, n, n, n, 0, 0, nil}},
		{"nobody defined", []float64{nan, inf, -inf}, Spread{n, n, n, n, n, n, 0, 3, nil}},
		{"one", []float64{.1}, Spread{.1, .1, .1, .1, .1, .1, 1, 0, nil}},
		// The percentiles are at .05 and .95 of the way from 1 to 3.
		{"two", []float64{3, 1}, Spread{2, 2, 1.1, 2.9, 1, 3, 2, 0, nil}},
		// Sorted 0 2 4 10: median 3, p05 at .15 is .3, p95 at 2.85 is 4 + .85·6 = 9.1.
		{"four, one undefined", []float64{4, 10, nan, 0, 2}, Spread{4, 3, .3, 9.1, 0, 10, 4, 1, nil}},
		// 0 to 20 in any order: positions 1, 10 and 19, no interpolation.
		{"21", []float64{20, 0, 19, 1, 18, 2, 17, 3, 16, 4, 15, 5, 14, 6, 13, 7, 12, 8, 11, 9, 10}, Spread{10, 10, 1, 19, 0, 20, 21, 0, nil}},
	} {
		if got := NewSpread(c.values); !sameSpread(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func sameSpread(a, b Spread) bool {
	figures := func(s Spread) []Number { return []Number{s.Mean, s.Median, s.P05, s.P95, s.Min, s.Max} }
	for i, v := range figures(a) {
		if !near(float64(v), float64(figures(b)[i]), 1e-14) {
			return false
		}
	}
	return a.Count == b.Count && a.Undefined == b.Undefined && reflect.DeepEqual(a.BelowOne, b.BelowOne)
}

// TestFleetNumPy compares spreads with these results of NumPy 1.24: v =
// ((np.arange(42)*17)%43)**2/1000, v.mean(), np.percentile(v, [50, 5, 95, 0, 100]), (v <
// 1).mean().
func TestFleetNumPy(t *testing.T) {
	var clients []Scores
	for i := range 42 {
		k := i * 17 % 43
		clients = append(clients, Scores{{"relative_mae", float64(k*k) / 1000}})
	}
	below := Number(0.7380952380952381)
	want := Spread{0.5930714285714286, 0.4205, 0.00425, 1.59605, 0, 1.764, 42, 0, &below}
	if got := NewFleet(clients)["relative_mae"]; !sameSpread(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestSpreadLaws checks properties for any values: their order does not matter, the
// quantiles ascend, and equal values have no spread.
func TestSpreadLaws(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		values := make([]float64, 1+rng.IntN(60))
		equal := make([]float64, len(values))
		for i := range values {
			values[i] = rng.NormFloat64() * math.Pow(10, float64(rng.IntN(6)))
			equal[i] = values[0]
		}
		s := NewSpread(values)
		if !(s.Min <= s.P05 && s.P05 <= s.Median && s.Median <= s.P95 && s.P95 <= s.Max && s.Min <= s.Mean && s.Mean <= s.Max) {
			t.Errorf("%+v", s)
		}
		rng.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
		if again := NewSpread(values); !sameSpread(again, s) {
			t.Errorf("%+v, in a different order %+v", s, again)
		}
		if e := NewSpread(equal); e.P05 != e.Max || e.P95 != e.Min || e.Median != e.Min {
			t.Errorf("equal values: %+v", e)
		}
	}
}

// TestFleetJSON checks the JSON encoding, which is part of the command line's output.
func TestFleetJSON(t *testing.T) {
	var clients []Scores
	for _, x := range []triple{{2, 1, 1.5}, {2, 4, 0}, {3, 3, 3}} { // relative MAE 1/.5, 2/4, undefined
		var p Point
		if err := p.Add(x[0], x[1], x[2]); err != nil {
			t.Fatal(err)
		}
		mae, _ := p.Scores().Get("mae")
		relative, _ := p.Scores().Get("relative_mae")
		clients = append(clients, Scores{{"mae", mae}, {"relative_mae", relative}})
	}
	clients[2] = append(clients[2], Score{"crps", nan})
	got, err := json.Marshal(map[string]Fleet{"fleet": NewFleet(clients)})
	want := `{"fleet":{` +
		`"crps":{"mean":null,"median":null,"p05":null,"p95":null,"min":null,"max":null,"count":0,"undefined":3},` +
		`"mae":{"mean":1,"median":1,"p05":0.1,"p95":1.9,"min":0,"max":2,"count":3,"undefined":0},` +
		`"relative_mae":{"mean":1.25,"median":1.25,"p05":0.575,"p95":1.9249999999999998,"min":0.5,"max":2,"count":2,"undefined":1,"below_one":0.5}}}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	var back struct{ Fleet Fleet }
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	for name, s := range NewFleet(clients) {
		if !sameSpread(back.Fleet[name], s) {
			t.Errorf("%s read back as %+v, was %+v", name, back.Fleet[name], s)
		}
	}
}

func TestBelowOne(t *testing.T) {
	for _, c := range []struct {
		relative []float64
		want     Number
	}{
		{[]float64{.5, 1, 1.5, .99}, .5}, // 1 is not better than the reference
		{[]float64{.5, nan, inf, 2, 3}, Number(1. / 3)},
		{[]float64{2}, 0},
		{[]float64{nan}, Number(nan)},
	} {
		var clients []Scores
		for _, v := range c.relative {
			clients = append(clients, Scores{{"mae", 1}, {"relative_mae", v}})
		}
		fleet := NewFleet(clients)
		if got := fleet["relative_mae"].BelowOne; got == nil || !near(float64(*got), float64(c.want), 1e-15) {
			t.Errorf("%v: %v, want %v", c.relative, got, c.want)
		}
		if fleet["mae"].BelowOne != nil {
			t.Error("BelowOne accepted MAE")
		}
	}
	if fleet := NewFleet(nil); len(fleet) != 0 {
		t.Errorf("an empty fleet: %v", fleet)
	}
}

func TestNumberJSON(t *testing.T) {
	for _, c := range []struct {
		in   float64
		text string
		back float64
	}{{1.5, "1.5", 1.5}, {nan, "null", nan}, {inf, "null", nan}, {-inf, "null", nan}, {0, "0", 0}, {1e300, "1e+300", 1e300}} {
		text, err := json.Marshal(Number(c.in))
		if err != nil || string(text) != c.text {
			t.Errorf("%v: %s, %v", c.in, text, err)
		}
		back := Number(7)
		if err := json.Unmarshal(text, &back); err != nil || !near(float64(back), c.back, 0) {
			t.Errorf("%s: %v, %v", text, back, err)
		}
	}
	if err := json.Unmarshal([]byte(`"1"`), new(Number)); err == nil {
		t.Error("a string was accepted")
	}
}
