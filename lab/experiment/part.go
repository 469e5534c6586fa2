package experiment

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Lab runs experiments.
type Lab struct {
	Dir      string // folder of all runs
	Kernel   *kernel.Set
	Parallel int
	// Open returns a dataset by its name under datasets/. The lab does not close it.
	Open func(name string) (*series.Dataset, error)
	// Progress, if not nil, is called with the number of rounds done and the total number
	// of rounds.
	Progress func(done, of int)

	costs []Result
}

// Cost returns the cost of Run's results: a row of the part [Meta] for each part that has
// runs, whose name is the row's method. A row has the number of runs, their gradient steps, and
// their CPU time in seconds. Runs that failed because they diverged are included.
func (l *Lab) Cost() []Result { return l.costs }

// spend adds the cost of a run to the row of its part. The summary of a run that failed is nil.
func (l *Lab) spend(part string, s *run.Summary) {
	i := slices.IndexFunc(l.costs, func(r Result) bool { return r.Method == part })
	if i < 0 {
		i = len(l.costs)
		l.costs = append(l.costs, Result{Part: Meta, Method: part, Figures: map[string]Figure{"runs": {0}, "gradients": {0}, "cpu_seconds": {0}}})
	}
	f := l.costs[i].Figures
	f["runs"][0]++
	if s != nil {
		f["gradients"][0] += float64(s.Steps)
		f["cpu_seconds"][0] += s.Seconds.CPU
	}
}

// row is a result with the trials from which it is computed. The trials may not be finished
// yet.
type row struct {
	Result
	trials []int
}

// Run runs an experiment and returns its results, ordered by part and dataset. In each
// part and dataset, baselines come before methods.
func (l *Lab) Run(ctx context.Context, s *Spec) ([]Result, error) {
	var (
		results  []Result
		rows     []row
		begun    int // index of the first part whose runs are not done
		of, done int
	)
	for i := range s.Parts {
		n, err := s.Parts[i].rounds()
		if err != nil {
			return nil, err
		}
		of += n
	}
	l.costs = nil
	e := l.stage(0, of)
	finish := func(end int) error {
		more, err := l.finish(ctx, e, s.Parts[begun:end], rows)
		results = append(results, more...)
		done += e.Rounds()
		e, rows, begun = l.stage(done, of), nil, end
		return err
	}
	for i := range s.Parts {
		p := &s.Parts[i]
		if slices.ContainsFunc(s.Parts[begun:i], func(e Part) bool { return slices.Contains(p.Best, e.Name) }) {
			if err := finish(i); err != nil {
				return nil, err
			}
		}
		more, err := l.part(ctx, e, p, results)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		rows = append(rows, more...)
	}
	if err := finish(len(s.Parts)); err != nil {
		return nil, err
	}
	return results, nil
}

// stage returns an experiment without trials for the next stage of the lab. Consecutive parts
// that do not depend on each other's results run together as one stage. The argument before is
// the number of rounds in earlier stages, and of is the number in all stages.
func (l *Lab) stage(before, of int) *Experiment {
	e := &Experiment{Dir: l.Dir, Kernel: l.Kernel, Parallel: l.Parallel, Diverging: true}
	if l.Progress != nil {
		e.Progress = func(done, _ int) { l.Progress(before+done, of) }
	}
	return e
}

// Reference returns the forecast to which the relative MAE of all methods refers, such as
// last-value, or "" if the part has no methods or they have different references.
func (p *Part) Reference() string {
	variants, err := p.plans(nil)
	if err != nil || p.Data != "" {
		return ""
	}
	name := ""
	for _, v := range variants {
		resolved, err := recipe.Assume(v.plan)
		if err != nil {
			return ""
		}
		r := string(forecast.Reference(v.plan.Evaluate.Reference).For(layoutOf(resolved)))
		if name != "" && r != name {
			return ""
		}
		name = r
	}
	return name
}

// rounds returns the total number of rounds of a part.
func (p *Part) rounds() (int, error) {
	if p.Data != "" {
		return 0, nil
	}
	variants, err := p.plans(nil)
	n := 0
	for _, v := range variants {
		n += v.plan.Rounds * len(p.Seeds) * len(p.Datasets)
	}
	return n, err
}

// finish runs the trials of a stage and fills in the rows of its parts.
func (l *Lab) finish(ctx context.Context, e *Experiment, parts []Part, rows []row) ([]Result, error) {
	done, err := e.Run(ctx)
	if err != nil {
		return nil, err
	}
	for i, s := range done {
		l.spend(e.Trials[i].Part, s)
	}
	results := make([]Result, len(rows))
	outcomes := make([][]*outcome, len(rows))
	for i, r := range rows {
		for _, t := range r.trials {
			o, err := readOutcome(filepath.Join(l.Dir, e.Trials[t].folder()), e.Trials[t], done[t])
			if err != nil {
				return nil, err
			}
			outcomes[i] = append(outcomes[i], o)
		}
		if len(r.trials) > 0 {
			maps.Copy(r.Figures, result(outcomes[i]))
		}
		results[i] = r.Result
	}
	for i := range parts {
		parts[i].contest(rows, outcomes)
		parts[i].versus(rows, outcomes)
		if err := l.test(e, done, &parts[i], rows); err != nil {
			return nil, fmt.Errorf("%s: %w", parts[i].Name, err)
		}
	}
	return results, nil
}

// part adds the trials of a part to e, backtests the part's baselines, and returns the
// rows of its table.
func (l *Lab) part(ctx context.Context, e *Experiment, p *Part, earlier []Result) ([]row, error) {
	var rows []row
	for _, name := range p.Datasets {
		if p.Data != "" {
			d, err := l.Open(name)
			if err == nil && p.Clients > 0 {
				d, err = d.First(p.Clients)
			}
			if err != nil {
				return nil, err
			}
			more, err := p.describe(d)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			rows = append(rows, more...)
			continue
		}
		best, err := p.choose(name, earlier)
		if err != nil {
			return nil, err
		}
		variants, err := p.plans(best)
		if err != nil {
			return nil, err
		}
		d, err := l.Open(name)
		if err == nil && p.Clients > 0 {
			d, err = d.First(p.Clients)
		}
		if err != nil {
			return nil, err
		}
		for i := range variants {
			if variants[i].plan, err = recipe.Resolve(variants[i].plan, d.Interval); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		if len(p.Baselines) > 0 && variants[0].plan.Evaluate.Holdout > 0 {
			return nil, fmt.Errorf("baselines are scored on all clients, but these plans only on held-out clients: remove the baselines or evaluate.holdout")
		}
		fleets, err := Baselines(ctx, d, variants[0].plan, p.Baselines, l.Parallel, filepath.Join(l.Dir, p.Name, d.Name))
		if err != nil {
			return nil, err
		}
		base := Result{Part: p.Name, Dataset: d.Name, Generated: d.Generated}
		for i, f := range fleets {
			r := base
			r.Method, r.Figures = p.Baselines[i], map[string]Figure{}
			for name, v := range ofFleet(f.Fleet) {
				r.Figures[name] = Figure{v}
			}
			rows = append(rows, row{Result: r})
		}
		for _, v := range variants {
			r := row{Result: base}
			r.Method, r.At, r.Figures = v.method, v.at, map[string]Figure{}
			if t := p.method(v.method).tuned; t != nil {
				for i, a := range t.part.Grid {
					if x, err := strconv.ParseFloat(best[v.method].at[i], 64); err == nil {
						r.Figures["best "+a.Key] = Figure{x}
					}
				}
			}
			for _, seed := range p.Seeds {
				plan := *v.plan
				plan.Seed = seed
				r.trials = append(r.trials, len(e.Trials))
				e.Trials = append(e.Trials, Trial{Plan: &plan, Dataset: d, Part: p.Name})
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// choose returns, for each method of an earlier part, the point of that part's grid with the
// lowest validation loss on the given dataset. The loss is the last evaluation's loss, or the
// lowest of all evaluations if the earlier part keeps the best weights. If the earlier part
// does not have this dataset, choose uses the first dataset of that part.
func (p *Part) choose(dataset string, earlier []Result) (map[string]point, error) {
	best := map[string]point{}
	for _, m := range p.Methods {
		if m.tuned == nil {
			continue
		}
		from, dataset := m.tuned.part, dataset
		if !slices.Contains(from.Datasets, dataset) {
			dataset = from.Datasets[0]
		}
		least, by := math.Inf(1), "validation_loss"
		if variants, err := from.plans(nil); err == nil && variants[0].plan.Evaluate.Keep == "best" {
			by = "validation_loss_lowest" // the loss of the weights that are scored
		}
		for _, pt := range from.points() {
			for _, r := range earlier {
				if r.Part != from.Name || r.Dataset != dataset || r.Method != m.Name || !slices.Equal(r.At, pt.at) {
					continue
				}
				if loss := r.Figures[by].Mean(); loss < least {
					least, best[m.Name] = loss, pt
				}
			}
		}
		if math.IsInf(least, 1) {
			return nil, fmt.Errorf("method %s has no validation loss in %s: all its runs diverged, or evaluate.every is 0", m.Name, from.Name)
		}
	}
	return best, nil
}
