package experiment

import (
	"context"
	"path/filepath"

	"loadstar/fed"
	"loadstar/metric"
	"loadstar/series"
)

// Contest compares methods and baselines on one dataset.
type Contest struct {
	Dataset *series.Dataset
	// Question is the plan from which the baselines take horizon, targets and split.
	Question  *fed.Plan
	Baselines []string
	Methods   []Contestant
}

// Contestant is a method: plans that differ only in their seed.
type Contestant struct {
	Method string
	Plans  []*fed.Plan
}

// Comparison is the result of a contest: baselines first, then methods.
type Comparison struct {
	Dataset   string     `json:"dataset"`
	Generated bool       `json:"generated"`
	Clients   int        `json:"clients"`
	Methods   []Compared `json:"methods"`
}

// Compared has the scores of a baseline, or the mean scores of a method over its seeds.
type Compared struct {
	Method   string        `json:"method"`
	Mean     metric.Number `json:"relative_mae_mean"`
	Median   metric.Number `json:"relative_mae_median"`
	BelowOne metric.Number `json:"below_one"`
	MAE      metric.Number `json:"mae"`
	// Low and High are the lowest and the highest median relative MAE of any seed.
	Low  metric.Number `json:"relative_mae_median_low"`
	High metric.Number `json:"relative_mae_median_high"`
}

// Compare backtests the baselines, trains all plans in e's folder and returns the
// comparisons in the order of the contests. The experiment must have no trials of its own.
func (e *Experiment) Compare(ctx context.Context, contests []Contest) ([]Comparison, error) {
	var all []Comparison
	for _, c := range contests {
		out := Comparison{Dataset: c.Dataset.Name, Generated: c.Dataset.Generated, Clients: c.Dataset.Len()}
		fleets, err := Baselines(ctx, c.Dataset, c.Question, c.Baselines, e.Parallel, filepath.Join(e.Dir, c.Dataset.Name))
		if err != nil {
			return nil, err
		}
		for i, f := range fleets {
			out.Methods = append(out.Methods, compared(c.Baselines[i], []metric.Fleet{f}))
		}
		for _, m := range c.Methods {
			for _, p := range m.Plans {
				e.Trials = append(e.Trials, Trial{Plan: p, Dataset: c.Dataset})
			}
		}
		all = append(all, out)
	}
	done, err := e.Run(ctx)
	if err != nil {
		return nil, err
	}
	for i, c := range contests {
		for _, m := range c.Methods {
			var fleets []metric.Fleet
			for _, s := range done[:len(m.Plans)] {
				fleets = append(fleets, s.Fleet)
			}
			done = done[len(m.Plans):]
			all[i].Methods = append(all[i].Methods, compared(m.Method, fleets))
		}
	}
	return all, nil
}

// compared returns the mean scores of a method over seeds, and the range of its median
// relative MAE.
func compared(method string, seeds []metric.Fleet) Compared {
	values := map[string][]float64{}
	for _, f := range seeds {
		for name, v := range ofFleet(f) {
			values[name] = append(values[name], v)
		}
	}
	mean := func(name string) metric.Number { return metric.Number(figure(values[name]).Mean) }
	median := figure(values["relative_mae_median"])
	return Compared{
		Method: method, Mean: mean("relative_mae_mean"), Median: metric.Number(median.Mean), BelowOne: mean("below_one"), MAE: mean("mae"),
		Low: metric.Number(median.Low), High: metric.Number(median.High),
	}
}
