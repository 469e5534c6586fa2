package issue

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"loadstar/series"
)

func loadOf(m series.Meter) func(int64) float64 {
	return func(at int64) float64 {
		if i := (at - m.Start) / hour; i >= 0 && i < int64(len(m.Load)) {
			return float64(m.Load[i])
		}
		return math.NaN()
	}
}

// TestPaths checks that the scenarios of a row have the row's quantiles, that they follow the
// errors of earlier forecasts, and that they require a minimum number of earlier forecasts.
func TestPaths(t *testing.T) {
	// Each load is the forecast plus an error. The error is the same for all hours of a day
	// except the last hour, which has its own error.
	random := rand.New(rand.NewPCG(1, 1))
	levels := []float64{0.1, 0.5, 0.9}
	const n, rows = 50, 4
	var earlier []Forecast
	loads := map[int64]float64{}
	issue := func(d int) Forecast {
		f := Forecast{Cutoff: int64(d) * day, Levels: levels, nonnegative: true}
		for i := range rows {
			mid := 1 + float64(d%7) + float64(i)
			f.Rows = append(f.Rows, Row{Time: f.Cutoff + int64(i)*hour, Values: []float64{mid - 0.5, mid, mid + 2}, Mean: mid + 0.45})
		}
		return f
	}
	for d := range 60 {
		f := issue(d)
		e := random.Float64() - 0.4
		for i, r := range f.Rows {
			if i == rows-1 {
				e = random.Float64() - 0.4
			}
			loads[r.Time] = r.Values[1] + e
		}
		earlier = append(earlier, f)
	}
	load := func(at int64) float64 {
		if v, ok := loads[at]; ok {
			return v
		}
		return math.NaN()
	}
	f := issue(60)
	if !AddPaths(&f, earlier, load, n) {
		t.Fatal("no scenarios")
	}
	for i, r := range f.Rows {
		sorted := slices.Clone(r.Paths)
		slices.Sort(sorted)
		if len(sorted) != n || sorted[0] < 0 {
			t.Fatalf("row %d has %d scenarios from %g on", i, len(sorted), sorted[0])
		}
		for k, level := range levels {
			// The quantile lies between the values of the two neighbouring ranks.
			at := int(level * n)
			if low, high := sorted[at-1], sorted[at]; r.Values[k] < low-1e-9 || r.Values[k] > high+1e-9 {
				t.Errorf("row %d: quantile %g of the scenarios is between %g and %g, want %g", i, level, low, high, r.Values[k])
			}
		}
		mean := 0.0
		for _, v := range sorted {
			mean += v / n
		}
		if math.Abs(mean-r.Mean) > 0.05 {
			t.Errorf("row %d: the scenarios have the mean %g, the row %g", i, mean, r.Mean)
		}
	}
	// The first three hours have the same error; the last hour has its own.
	same, other := 0, 0
	for k := range n {
		rank := func(i int) int {
			below := 0
			for _, v := range f.Rows[i].Paths {
				if v < f.Rows[i].Paths[k] {
					below++
				}
			}
			return below
		}
		if rank(0) == rank(1) && rank(1) == rank(2) {
			same++
		}
		if rank(0) == rank(3) {
			other++
		}
	}
	if same != n || other > n/4 {
		t.Errorf("%d scenarios have the same rank in all hours with the same error, want %d, and %d in the other hour", same, n, other)
	}
	again := issue(60)
	AddPaths(&again, earlier, load, n)
	if !slices.Equal(again.Rows[2].Paths, f.Rows[2].Paths) {
		t.Error("the scenarios differ from call to call")
	}
	// Later loads, which this test knows, have no effect.
	past := issue(40)
	AddPaths(&past, earlier[:40], load, n)
	future := issue(40)
	AddPaths(&future, earlier, load, n)
	if len(past.Rows[0].Paths) != n || !slices.Equal(past.Rows[0].Paths, future.Rows[0].Paths) {
		t.Error("forecasts after the cutoff change the scenarios")
	}
	if few := issue(60); AddPaths(&few, earlier[:LeastShapes-1], load, n) || few.Rows[0].Paths != nil {
		t.Error("scenarios from too few forecasts")
	}
}

// TestPathsOfNetLoad checks that scenarios for a meter that feeds in are not cut off at 0.
func TestPathsOfNetLoad(t *testing.T) {
	m := meter(120, time.UTC)
	for i := range m.Load {
		m.Load[i] -= 3
	}
	s := state(t, Config{H: 24})
	var earlier []Forecast
	for at := m.Start + 30*day; at < m.Start+100*day; at += 6 * hour {
		if f := s.Issue(m, Models{Own: newFake(m, 24)}, at); at%day == 0 {
			earlier = append(earlier, f)
		}
	}
	f := s.Issue(m, Models{Own: newFake(m, 24)}, m.Start+100*day)
	if !AddPaths(&f, earlier, loadOf(m), 50) {
		t.Fatal("no scenarios")
	}
	below := 0
	for _, r := range f.Rows {
		if r.Values[0] < 0 && slices.Min(r.Paths) < r.Values[0] {
			below++
		}
	}
	if below < 8 {
		t.Errorf("%d of 24 hours have scenarios below a negative P10", below)
	}
}
