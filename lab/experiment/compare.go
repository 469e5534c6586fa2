package experiment

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/forecast"
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
	// Against is the method with which the others are compared client by client, or "".
	Against string
}

// Contestant is a method: plans that differ only in their seed.
type Contestant struct {
	Method string
	Plans  []*fed.Plan
}

// Comparison is the result of a contest: baselines first, then methods.
type Comparison struct {
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	Clients   int    `json:"clients"`
	// Reference is the forecast to which the relative MAE refers.
	Reference forecast.Reference `json:"reference"`
	Methods   []Compared         `json:"methods"`
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
	// Paired compares the method with Against client by client, as a mean over seeds. It is
	// nil for baselines and for Against itself.
	Paired *Paired `json:"paired,omitempty"`
}

// Compare backtests the baselines, trains all plans in e's folder and returns the
// comparisons in the order of the contests. The experiment must have no trials of its own.
func (e *Experiment) Compare(ctx context.Context, contests []Contest) ([]Comparison, error) {
	var all []Comparison
	for _, c := range contests {
		if err := c.check(); err != nil {
			return nil, err
		}
		q := c.Question
		out := Comparison{
			Dataset: c.Dataset.Name, Generated: c.Dataset.Generated, Clients: c.Dataset.Len(),
			Reference: forecast.Reference(q.Evaluate.Reference).For(series.Layout{Horizon: q.Model.Horizon, Targets: q.Model.Targets}),
		}
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
			result := compared(m.Method, fleets)
			if result.Paired, err = e.pair(c, m); err != nil {
				return nil, err
			}
			all[i].Methods = append(all[i].Methods, result)
		}
	}
	return all, nil
}

// check returns an error if the methods cannot be compared with each other.
func (c Contest) check() error {
	var names []string
	for _, m := range c.Methods {
		names = append(names, m.Method)
		for _, p := range m.Plans {
			q := c.Question
			of := func(p *fed.Plan) forecast.Reference {
				return forecast.Reference(p.Evaluate.Reference).For(series.Layout{Horizon: p.Model.Horizon, Targets: p.Model.Targets})
			}
			if a, b := of(q), of(p); a != b {
				return fmt.Errorf("errors of plan %s are relative to %s, and those of %s to %s: compare plans of the same task, or set evaluate.reference in both", q.Name, a, p.Name, b)
			}
		}
	}
	if c.Against != "" && !slices.Contains(names, c.Against) {
		return fmt.Errorf("no plan %s to compare the others with; there are %s", c.Against, strings.Join(names, ", "))
	}
	return nil
}

// pair compares a method with Against, seed by seed. It returns nil if there is nothing to
// compare.
func (e *Experiment) pair(c Contest, m Contestant) (*Paired, error) {
	i := slices.IndexFunc(c.Methods, func(o Contestant) bool { return o.Method == c.Against })
	if i < 0 || m.Method == c.Against {
		return nil, nil
	}
	var pairs []Paired
	for k, p := range m.Plans {
		dir := func(p *fed.Plan) string { return filepath.Join(e.Dir, Trial{Plan: p, Dataset: c.Dataset}.folder()) }
		one, err := Pair(dir(p), dir(c.Methods[i].Plans[k]))
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, one)
	}
	mean := paired(pairs)
	return &mean, nil
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
