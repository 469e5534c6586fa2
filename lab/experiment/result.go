package experiment

import (
	"fmt"
	"math"
	"slices"

	"loadstar/metric"
)

// Figure contains the values of a number, one for each seed in the order of the seeds. The
// value of a run that has no such number, for example because a weight became infinite, is
// NaN.
type Figure []float64

// Mean returns the mean over seeds. It is NaN if the figure has no values or any is NaN,
// because a mean over the other runs would be biased.
func (f Figure) Mean() float64 {
	if len(f) == 0 {
		return math.NaN()
	}
	mean := 0.0
	for _, v := range f {
		mean += v / float64(len(f))
	}
	return mean
}

// Low returns the lowest value, or NaN if the mean is NaN.
func (f Figure) Low() float64 {
	if math.IsNaN(f.Mean()) {
		return math.NaN()
	}
	return slices.Min(f)
}

// High returns the highest value, or NaN if the mean is NaN.
func (f Figure) High() float64 {
	if math.IsNaN(f.Mean()) {
		return math.NaN()
	}
	return slices.Max(f)
}

// Spread returns the sample standard deviation over seeds. It is NaN for fewer than two
// values.
func (f Figure) Spread() float64 {
	if len(f) < 2 {
		return math.NaN()
	}
	mean, sum := f.Mean(), 0.0
	for _, v := range f {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(f)-1))
}

// String returns the mean, followed by the range if the values differ.
func (f Figure) String() string {
	mean := f.Mean()
	if math.IsNaN(mean) {
		return "-"
	}
	if low, high := f.Low(), f.High(); low != high {
		return fmt.Sprintf("%.4g (%.4g-%.4g)", mean, low, high)
	}
	return fmt.Sprintf("%.4g", mean)
}

// Result contains the scores of one method on one dataset.
type Result struct {
	Part, Dataset string
	Generated     bool
	Method        string
	At            []string // point of the grid: the value on each axis
	// Figures maps the name of a number, such as mae, to its values.
	Figures map[string]Figure
}

// Diverged returns how many of the runs diverged: a weight or a loss became infinite, or the
// last validation loss was at least ten times the lowest.
func (r Result) Diverged() int {
	n := 0
	for _, v := range r.Figures["diverged"] {
		if v > 0 {
			n++
		}
	}
	return n
}

// lateGain is the share by which the last validation loss must be below all earlier ones for a
// run to count as still improving.
const lateGain = 0.001

// Improving returns how many of the runs were still improving when they ended. Such a run did
// not diverge. Its last validation loss was lower than all others by more than a thousandth, or
// it was never evaluated. For older results, which do not contain late_gain, it is enough that
// the last loss is the lowest.
func (r Result) Improving() int {
	n := 0
	gains, rose, lost := r.Figures["late_gain"], r.Figures["rose"], r.Figures["diverged"]
	for i := range lost {
		switch {
		case lost[i] > 0:
		case i < len(gains) && !math.IsNaN(gains[i]):
			if gains[i] > lateGain {
				n++
			}
		case i >= len(rose) || !(rose[i] > 1):
			n++
		}
	}
	return n
}

// Names lists the figures that every result has, in display order.
var Names = []string{"relative_mae_mean", "relative_mae_median", "below_one", "mae", "rmse", "nmae", "mape"}

func ofFleet(f metric.Fleet) map[string]float64 {
	relative := f["relative_mae"]
	below := 0.0
	if relative.BelowOne != nil {
		below = float64(*relative.BelowOne)
	}
	return map[string]float64{
		"relative_mae_mean": float64(relative.Mean), "relative_mae_median": float64(relative.Median), "below_one": below,
		"mae": float64(f["mae"].Mean), "rmse": float64(f["rmse"].Mean), "nmae": float64(f["nmae"].Mean), "mape": float64(f["mape"].Mean),
	}
}

// result combines the runs of one variant.
func result(runs []*outcome) map[string]Figure {
	out := map[string]Figure{}
	set := func(i int, name string, v float64) {
		f := out[name]
		if f == nil {
			f = make(Figure, len(runs))
			for k := range f {
				f[k] = math.NaN()
			}
			out[name] = f
		}
		f[i] = v
	}
	for i, r := range runs {
		for name, v := range r.figures() {
			set(i, name, v)
		}
	}
	for _, name := range Names {
		if out[name] == nil { // every run failed
			set(0, name, math.NaN())
		}
	}
	return out
}
