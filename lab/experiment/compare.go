package experiment

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/lab/backtest"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// Contest compares methods and baselines on one dataset. Its plans are resolved.
type Contest struct {
	Dataset *series.Dataset
	// DataPath is the path from which Dataset was read, or "".
	DataPath string
	// Question is the plan from which the baselines take horizon, targets and split.
	Question  *fed.Plan
	Baselines []string
	Methods   []Contestant
	// Subject is the method that is compared with every other method client by client, or "".
	Subject string
	// Peers is a folder with tables that bench skill has written, or "". Their forecasters are
	// shown as baselines.
	Peers string
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

// Compared contains the scores of a baseline, or the mean scores of a method over its seeds.
type Compared struct {
	Method   string        `json:"method"`
	Mean     metric.Number `json:"relative_mae_mean"`
	Median   metric.Number `json:"relative_mae_median"`
	BelowOne metric.Number `json:"below_one"`
	MAE      metric.Number `json:"mae"`
	// Low and High are the lowest and the highest median relative MAE over seeds.
	Low  metric.Number `json:"relative_mae_median_low"`
	High metric.Number `json:"relative_mae_median_high"`
	// Seeds is the number of seeds, or 0 for a baseline. Diverged is the number of seeds whose
	// last validation loss was at least ten times the lowest.
	Seeds    int `json:"seeds"`
	Diverged int `json:"diverged"`
	// Coverage is the share of loads between the lowest and the highest quantile, as a mean over
	// clients. Calibrated is the same share after calibration. Both are NaN for methods without
	// quantiles.
	Coverage   metric.Number `json:"coverage"`
	Calibrated metric.Number `json:"coverage_calibrated"`
	// CPU is the CPU time of a run in seconds, as a mean over seeds. Down and Up are the
	// bytes that a client receives and sends in a round.
	CPU  metric.Number `json:"cpu_seconds"`
	Down int64         `json:"bytes_down_per_turn"`
	Up   int64         `json:"bytes_up_per_turn"`
	// Paired compares the subject with this method client by client, as a mean over seeds.
	// It is nil for the subject itself.
	Paired *Paired `json:"paired,omitempty"`
}

// Compare backtests the baselines, trains all plans in e's folder and returns the comparisons
// in the order of the contests. The experiment must not have trials of its own.
func (e *Experiment) Compare(ctx context.Context, contests []Contest) ([]Comparison, error) {
	var (
		all    []Comparison
		scored [][]Scored // baselines, by contest
	)
	for _, c := range contests {
		if err := c.check(); err != nil {
			return nil, err
		}
		q := c.Question
		out := Comparison{
			Dataset: c.Dataset.Name, Generated: c.Dataset.Generated, Clients: c.Dataset.Len(),
			Reference: forecast.Reference(q.Evaluate.Reference).For(layoutOf(q)),
		}
		baselines, err := Baselines(ctx, c.Dataset, c.Question, c.Baselines, e.Parallel, filepath.Join(e.Dir, c.Dataset.Name))
		if err != nil {
			return nil, err
		}
		var fleets []metric.Fleet
		for _, b := range baselines {
			out.Methods = append(out.Methods, compared(b.Method, []metric.Fleet{b.Fleet}))
			fleets = append(fleets, b.Fleet)
		}
		if len(fleets) > 0 {
			if err := backtest.Enough(c.Dataset, backtest.Of(c.Dataset, q, 1), fleets...); err != nil {
				return nil, err
			}
		}
		for _, m := range c.Methods {
			for _, p := range m.Plans {
				e.Trials = append(e.Trials, Trial{Plan: p, Dataset: c.Dataset, DataPath: c.DataPath})
			}
		}
		all, scored = append(all, out), append(scored, baselines)
	}
	done, err := e.Run(ctx)
	if err != nil {
		return nil, err
	}
	for i, c := range contests {
		for _, m := range c.Methods {
			all[i].Methods = append(all[i].Methods, trained(m.Method, done[:len(m.Plans)]))
			done = done[len(m.Plans):]
		}
		if err := e.pair(c, scored[i], &all[i]); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all[i].Methods, func(m Compared) bool { return !math.IsNaN(float64(m.MAE)) }) {
			return nil, backtest.Enough(c.Dataset, backtest.Of(c.Dataset, c.Question, 1))
		}
	}
	return all, nil
}

// layoutOf returns the targets of a resolved plan.
func layoutOf(p *fed.Plan) series.Layout {
	return series.Layout{Horizon: p.Model.Horizon.Steps(), Targets: p.Model.Targets.Steps()}
}

// check returns an error if the methods cannot be compared with each other.
func (c Contest) check() error {
	var names []string
	for _, m := range c.Methods {
		names = append(names, m.Method)
		for _, p := range m.Plans {
			q := c.Question
			of := func(p *fed.Plan) forecast.Reference {
				return forecast.Reference(p.Evaluate.Reference).For(layoutOf(p))
			}
			if a, b := of(q), of(p); a != b {
				return fmt.Errorf("errors of plan %s are relative to %s, and those of %s to %s: compare plans of the same task, or set evaluate.reference in both", q.Name, a, p.Name, b)
			}
		}
	}
	if c.Subject != "" && !slices.Contains(names, c.Subject) {
		return fmt.Errorf("no plan %s to compare with the others; there are %s", c.Subject, strings.Join(names, ", "))
	}
	return nil
}

// pair compares the subject with the baselines and the other methods, seed by seed. A
// method with fewer seeds than the subject is compared with the subject's first seeds. It
// also adds the peers to the methods.
func (e *Experiment) pair(c Contest, baselines []Scored, out *Comparison) error {
	dir := func(p *fed.Plan) string { return filepath.Join(e.Dir, Trial{Plan: p, Dataset: c.Dataset}.folder()) }
	var (
		subject [][]clientErrors // by seed
		own     [][]run.Client
	)
	for _, m := range c.Methods {
		if m.Method != c.Subject {
			continue
		}
		for _, p := range m.Plans {
			one, err := readErrors(dir(p))
			if err != nil {
				return err
			}
			rows, err := run.Read[run.Client](dir(p), "clients")
			if err != nil {
				return err
			}
			subject, own = append(subject, one), append(own, rows)
		}
	}
	for k := range out.Methods {
		m := &out.Methods[k]
		if m.Method == c.Subject {
			continue
		}
		var pairs []Paired
		for seed := range subject {
			var one Paired
			var err error
			if k < len(baselines) {
				if one, err = pairErrors(subject[seed], baselines[k].errors); err == nil {
					p, _ := pairPeer(baselines[k].mae, baselines[k].reference, own[seed:seed+1])
					one.Uncorrected = p.Uncorrected
				}
			} else if plans := c.Methods[k-len(baselines)].Plans; seed < len(plans) {
				var other []clientErrors
				if other, err = readErrors(dir(plans[seed])); err == nil {
					one, err = pairErrors(subject[seed], other)
				}
			} else {
				break
			}
			if err != nil {
				return fmt.Errorf("%s and %s on %s: %w", c.Subject, m.Method, c.Dataset.Name, err)
			}
			pairs = append(pairs, one)
		}
		if len(pairs) > 0 {
			mean := paired(pairs)
			m.Paired = &mean
		}
	}
	if c.Peers == "" {
		return nil
	}
	peers, reference, err := readPeers(c.Peers, c.Dataset.Name, c.Question.Model.Targets.Steps(), out.Reference)
	for _, p := range peers {
		m, err := comparePeer(p, reference, own)
		if err != nil {
			return fmt.Errorf("%s and %s on %s: %w", c.Subject, p.method, c.Dataset.Name, err)
		}
		out.Methods = append(out.Methods, m)
	}
	return err
}

// trained returns the mean scores of a method over the runs of its seeds.
func trained(method string, runs []*run.Summary) Compared {
	var fleets []metric.Fleet
	for _, s := range runs {
		fleets = append(fleets, s.Fleet)
	}
	c := compared(method, fleets)
	c.Seeds, c.Down, c.Up = len(runs), runs[0].Down, runs[0].Up
	for _, s := range runs {
		if s.Course != nil && s.Course.Diverged {
			c.Diverged++
		}
		c.CPU += metric.Number(s.Seconds.CPU / float64(len(runs)))
	}
	return c
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
	mean := func(name string) metric.Number { return metric.Number(Figure(values[name]).Mean()) }
	median := Figure(values["relative_mae_median"])
	return Compared{
		Method: method, Mean: mean("relative_mae_mean"), Median: metric.Number(median.Mean()), BelowOne: mean("below_one"), MAE: mean("mae"),
		Low: metric.Number(median.Low()), High: metric.Number(median.High()),
		Coverage: meanOf(seeds, "coverage"), Calibrated: meanOf(seeds, "coverage_calibrated"),
	}
}

// meanOf returns the mean over seeds of a metric's mean over clients, or NaN if the method
// does not have the metric.
func meanOf(seeds []metric.Fleet, name string) metric.Number {
	sum := metric.Number(0)
	for _, f := range seeds {
		spread, ok := f[name]
		if !ok {
			return metric.Number(math.NaN())
		}
		sum += spread.Mean / metric.Number(len(seeds))
	}
	return sum
}
