package series

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var nan = float32(math.NaN())

// fleet returns a dataset with one meter, a temperature and a floor area.
func fleet(t testing.TB, clock *time.Location, start time.Time, load []float32) *Dataset {
	t.Helper()
	temperature := make([]float32, len(load)+48)
	for i := range temperature {
		temperature[i] = float32(i)
	}
	d, err := NewDataset(Dataset{
		Name: "test", Interval: time.Hour, Clock: clock, StaticNames: []string{"floor_area"},
		Weather: Weather{Start: start.Unix() - 24*3600, Names: []string{"temperature"}, Columns: [][]float32{temperature}},
	}, []Meter{{ID: "a", Start: start.Unix(), Load: load, Static: []float32{250}}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func inputs(t testing.TB, names ...string) []Input {
	t.Helper()
	var in []Input
	for _, n := range names {
		i, err := ParseInput(n)
		if err != nil {
			t.Fatal(err)
		}
		if i.String() != n {
			t.Fatalf("input %s became %s", n, i)
		}
		in = append(in, i)
	}
	return in
}

func framer(t testing.TB, d *Dataset, l Layout, s Split) *Framer {
	t.Helper()
	f, err := NewFramer(d, l, s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func count(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i)
	}
	return x
}

// TestWindowsByHand compares the windows with values computed by hand, for ten steps from
// Friday 22:00.
func TestWindowsByHand(t *testing.T) {
	start := time.Date(2021, 1, 1, 22, 0, 0, 0, time.UTC)
	d := fleet(t, time.UTC, start, count(10))
	f := framer(t, d, Layout{Lookback: 2, Horizon: 2, Targets: 1, Inputs: inputs(t, "load", "time_of_day", "day_of_week", "temperature", "time_of_day@target", "floor_area")}, Split{Train: 0.5, Validation: 0.2})
	w := f.Windows(d.Meter(0), nil)
	// Examples with last inputs 1 to 7 have targets 3 to 9. The splits begin at steps 5 and
	// 7.
	for _, c := range []struct {
		part Part
		want []int
	}{{All, []int{1, 2, 3, 4, 5, 6, 7}}, {Train, []int{1, 2}}, {Validation, []int{3, 4}}, {Test, []int{5, 6, 7}}} {
		var got []int
		for k := range w.Len(c.part) {
			got = append(got, w.At(c.part, k))
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("part %d has examples at %v, want %v", c.part, got, c.want)
		}
	}
	x, y := make([]float32, 12), make([]float32, 1)
	w.Gather(x, y, []Example{{Last: 1}})
	want := []float32{
		0, 22, 4, 24, 0, 250, // Friday 22:00; the target two hours later is Saturday 0:00
		1, 23, 4, 25, 1, 250,
	}
	if fmt.Sprint(x) != fmt.Sprint(want) || y[0] != 3 {
		t.Errorf("gathered %v and %v, want %v and 3", x, y, want)
	}

	// Values are scaled with the ranges of the training split, which is the first five
	// steps.
	r := f.Ranges(d.Meter(0))
	if r["load"] != (Range{0, 4}) || r["temperature"] != (Range{24, 28}) || r["floor_area"] != (Range{250, 250}) {
		t.Errorf("ranges %v", r)
	}
	w = f.Windows(d.Meter(0), r)
	w.Gather(x, y, []Example{{Last: 7}})
	if x[0] != 6.0/4 || x[3] != 6.0/4 || x[5] != 0 || y[0] != 9.0/4 || w.Unscale(Example{Last: 7}, y[0]) != 9 {
		t.Errorf("gathered %v and %v", x, y)
	}
}

// TestGapsExcludeWindows compares the windows with those of a brute-force search, for
// random gaps, layouts and splits.
func TestGapsExcludeWindows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	start := time.Date(2021, 3, 1, 0, 0, 0, 0, time.UTC)
	for range 200 {
		n := rng.IntN(120)
		load := count(n)
		for i := range load {
			if rng.IntN(15) == 0 {
				load[i] = nan
			}
		}
		d := fleet(t, time.UTC, start, load)
		for i := range d.Weather.Columns[0] {
			if rng.IntN(60) == 0 {
				d.Weather.Columns[0][i] = nan
			}
		}
		l := Layout{Lookback: 1 + rng.IntN(6), Horizon: 1 + rng.IntN(5), Targets: 1 + rng.IntN(4), Inputs: inputs(t, "load", "temperature", "load@target-24h")}
		s := Split{Train: 0.6, Validation: 0.2}
		w := framer(t, d, l, s).Windows(d.Meter(0), nil)
		train, validation := int(0.6*float64(n)+1e-9), int(0.8*float64(n)+1e-9)
		var want [4][]int
		at := func(x []float32, i int) float32 {
			if i < 0 || i >= len(x) {
				return nan
			}
			return x[i]
		}
		for last := range n {
			ok := true
			for i := last - l.Lookback + 1; i <= last; i++ {
				ok = ok && i >= 0 && !Missing(at(load, i)) && !Missing(at(d.Weather.Columns[0], i+24)) && !Missing(at(load, i+l.Horizon-24))
			}
			first, end := last+l.Horizon, last+l.Horizon+l.Targets
			for i := first; i < end; i++ {
				ok = ok && !Missing(at(load, i))
			}
			if !ok {
				continue
			}
			want[All] = append(want[All], last)
			switch {
			case end <= train:
				want[Train] = append(want[Train], last)
			case first >= train && end <= validation:
				want[Validation] = append(want[Validation], last)
			case first >= validation:
				want[Test] = append(want[Test], last)
			}
		}
		for p := range want {
			var got []int
			if err := w.Each(Part(p), func(last int) error { got = append(got, last); return nil }); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got) != fmt.Sprint(want[p]) || w.Len(Part(p)) != len(got) {
				t.Fatalf("layout %+v, part %d: examples at %v, want %v", l, p, got, want[p])
			}
		}
	}
}

// TestLagIsClockTime checks that a lag of one day refers to the same local time, which is
// 23 or 25 hours earlier at the clock changes in Berlin.
func TestLagIsClockTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		target time.Time // local time
		hours  int       // hours from the lagged value to the target
	}{
		{"an ordinary day", time.Date(2021, 3, 20, 12, 0, 0, 0, berlin), 24},
		{"noon after clocks went forward", time.Date(2021, 3, 28, 12, 0, 0, 0, berlin), 23},
		{"noon a day later", time.Date(2021, 3, 29, 12, 0, 0, 0, berlin), 24},
		{"noon after clocks went back", time.Date(2021, 10, 31, 12, 0, 0, 0, berlin), 25},
	} {
		start := time.Date(c.target.Year(), c.target.Month(), 1, 0, 0, 0, 0, time.UTC)
		d := fleet(t, berlin, start, count(31*24))
		f := framer(t, d, Layout{Lookback: 1, Horizon: 3, Targets: 1, Inputs: inputs(t, "load@target-24h", "time_of_day@target")}, DefaultSplit)
		w := f.Windows(d.Meter(0), nil)
		at := int(c.target.Sub(start).Hours())
		x, y := make([]float32, 2), make([]float32, 1)
		w.Gather(x, y, []Example{{Last: at - 3}})
		if y[0] != float32(at) || x[0] != float32(at-c.hours) || x[1] != 12 {
			t.Errorf("%s: target %g, lagged %g, clock %g; want %d, %d, 12", c.name, y[0], x[0], x[1], at, at-c.hours)
		}
	}
}

func TestFramerRefuses(t *testing.T) {
	d := fleet(t, time.UTC, time.Unix(0, 0), count(100))
	load := inputs(t, "load")
	for name, c := range map[string]struct {
		l Layout
		s Split
	}{
		"no lookback":   {Layout{0, 1, 1, load}, DefaultSplit},
		"no horizon":    {Layout{1, 0, 1, load}, DefaultSplit},
		"no inputs":     {Layout{1, 1, 1, nil}, DefaultSplit},
		"unknown input": {Layout{1, 1, 1, inputs(t, "wind")}, DefaultSplit},
		"unknown lag":   {Layout{1, 25, 1, inputs(t, "load@target-24h")}, DefaultSplit},
		"no training":   {Layout{1, 1, 1, load}, Split{Train: 0, Validation: 0.5}},
		"over one":      {Layout{1, 1, 1, load}, Split{Train: 0.9, Validation: 0.2}},
	} {
		if _, err := NewFramer(d, c.l, c.s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, bad := range []string{"", "@target", "load@target", "load@target-25h", "load@now", "temperature@target-24h", "load@target-h", "load@target24h"} {
		if in, err := ParseInput(bad); err == nil {
			t.Errorf("input %q was parsed as %v", bad, in)
		}
	}
}

func BenchmarkGather(b *testing.B) {
	d := fleet(b, time.UTC, time.Unix(0, 0), count(8760))
	f := framer(b, d, Layout{Lookback: 12, Horizon: 1, Targets: 1, Inputs: inputs(b, "load", "time_of_day", "day_of_week", "temperature", "temperature@target", "load@target-24h", "load@target-168h", "floor_area")}, DefaultSplit)
	w := f.Windows(d.Meter(0), f.Ranges(d.Meter(0)))
	rng := rand.New(rand.NewPCG(1, 1))
	at := make([]Example, 64)
	x, y := make([]float32, 64*12*8), make([]float32, 64)
	for b.Loop() {
		for i := range at {
			at[i].Last = w.At(Train, rng.IntN(w.Len(Train)))
		}
		w.Gather(x, y, at)
	}
}

// TestBlocks checks that parts end where a block of four weeks ends, so that series and shares
// that differ a little have the same parts.
func TestBlocks(t *testing.T) {
	const day, hour = 24 * 60 * 60, 60 * 60
	start := int64(7*28*day + 5*day) // in a block that is five days old
	s := Split{Train: 0.8, Validation: 0.1, Blocks: true}
	train, validation := s.cuts(start, hour, 365*24)
	for _, end := range []int{train, validation} {
		if at := start + int64(end)*hour; at%(28*day) != 0 {
			t.Errorf("a part ends %d days into a block", at%(28*day)/day)
		}
	}
	if days := train / 24; days < 292-28 || days > 292 || validation-train != 28*24 {
		t.Errorf("%d days of training, %d of validation", days, (validation-train)/24)
	}
	for n := range 24 {
		for _, other := range []Split{s, {Train: 0.8 + 1.0/(365*24), Validation: 0.1, Blocks: true}} {
			if a, b := other.cuts(start, hour, 365*24+n); a != train || b != validation {
				t.Errorf("%d hours later: %d and %d, want %d and %d", n, a, b, train, validation)
			}
		}
	}
	if a, b := s.cuts(start, hour, 10*24); a != 0 || b != 0 {
		t.Errorf("of ten days: %d and %d", a, b)
	}
}
