package report

import (
	"math"
	"slices"
	"testing"
)

// TestNewest checks that a shortened excerpt contains the newest steps up to the last forecast
// of the first client, and no gap after that forecast.
func TestNewest(t *testing.T) {
	none := math.NaN()
	x := excerpt{
		client: "a", start: 1000, interval: 10, actual: []float64{1, 2, 3, 4, 5, 6}, before: []float64{0, 1, 2, 3, 4, 5},
		leads: []lead{
			{values: []float64{1, 2, 3, none, none, none}, low: make([]float64, 6), high: make([]float64, 6)},
			{values: []float64{none, 2, 3, 4, none, none}, low: make([]float64, 6), high: make([]float64, 6)},
		},
	}
	if end := x.end(); end != 1040 {
		t.Errorf("the last forecast ends at %d, want 1040", end)
	}
	for _, c := range []struct {
		end, start int64
		steps      int
		want       []float64
	}{
		{1040, 1020, 2, []float64{3, 4}},
		{1010, 1000, 2, []float64{1, 2}},
		{9000, 1040, 2, []float64{5, 6}},
		{1040, 1000, 9, []float64{1, 2, 3, 4, 5, 6}},
	} {
		got := x.cutBefore(c.end, c.steps)
		if got.start != c.start || !slices.Equal(got.actual, c.want) || len(got.leads[1].values) != len(c.want) || len(got.before) != len(c.want) {
			t.Errorf("%d steps before %d: %v from %d, want %v from %d", c.steps, c.end, got.actual, got.start, c.want, c.start)
		}
	}
	x.leads = []lead{{values: []float64{none, none, none, none, none, none}}}
	if end := x.end(); end != 1060 {
		t.Errorf("without forecasts, the end is %d, want 1060", end)
	}
}
