package experiment

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"loadstar/lab/run"
	"loadstar/metric"
)

// Figure is the mean of a number over seeds, with its lowest and highest value.
type Figure struct{ Mean, Low, High float64 }

// figure returns the mean and the range of the values.
func figure(values []float64) Figure {
	f := Figure{Low: slices.Min(values), High: slices.Max(values)}
	for _, v := range values {
		f.Mean += v / float64(len(values))
	}
	return f
}

// String returns the mean, followed by the range if the values differ.
func (f Figure) String() string {
	if math.IsNaN(f.Mean) {
		return "-"
	}
	if f.Low == f.High {
		return fmt.Sprintf("%.4g", f.Mean)
	}
	return fmt.Sprintf("%.4g (%.4g-%.4g)", f.Mean, f.Low, f.High)
}

// Result has the scores of one method on one dataset.
type Result struct {
	Part, Dataset string
	Generated     bool
	Method        string
	At            []string // point of the grid: the value on each axis
	Seeds         int
	// Figures maps the name of a number, such as mae, to its mean and range.
	Figures map[string]Figure
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

// outcome is the result of one trial.
type outcome struct {
	*run.Summary // nil if the run diverged
	validation   validation
}

// result combines the runs of one variant. If any run diverged, the scores are NaN,
// because a mean over the other runs would be biased.
func result(runs []outcome) map[string]Figure {
	values := map[string][]float64{}
	lost := 0.0
	for _, r := range runs {
		if r.Summary == nil {
			lost++
			continue
		}
		for name, v := range ofFleet(r.Fleet) {
			values[name] = append(values[name], v)
		}
		values["bytes_per_turn"] = append(values["bytes_per_turn"], float64(r.Down+r.Up))
		values["steps"] = append(values["steps"], float64(r.Steps))
		if r.validation.clients > 0 {
			values["validation_loss"] = append(values["validation_loss"], r.validation.loss)
			values["validation_relative_mae"] = append(values["validation_relative_mae"], r.validation.relative)
		}
	}
	out := map[string]Figure{}
	if lost > 0 {
		for _, name := range Names {
			out[name] = figure([]float64{math.NaN()})
		}
		out["diverged"] = figure([]float64{lost / float64(len(runs))})
		return out
	}
	for name, v := range values {
		out[name] = figure(v)
	}
	return out
}

// WriteTSV writes results in long format: one row per figure.
func WriteTSV(w io.Writer, results []Result) error {
	if _, err := fmt.Fprintln(w, "part\tdataset\tmethod\tat\tseeds\tmetric\tmean\tlow\thigh"); err != nil {
		return err
	}
	for _, r := range results {
		names := make([]string, 0, len(r.Figures))
		for name := range r.Figures {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(cmp.Compare(order(a), order(b)), strings.Compare(a, b))
		})
		for _, name := range names {
			f := r.Figures[name]
			if _, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%.6g\t%.6g\t%.6g\n", r.Part, r.Dataset, r.Method, strings.Join(r.At, " "), r.Seeds, name, f.Mean, f.Low, f.High); err != nil {
				return err
			}
		}
	}
	return nil
}

func order(name string) int {
	if i := slices.Index(Names, name); i >= 0 {
		return i
	}
	return len(Names)
}
