package experiment

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"loadstar/lab/run"
	"loadstar/metric"
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
}

// row is a result with the trials from which it is computed. They may not be done yet.
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

// stage returns an experiment without trials for the next stage of the lab. Consecutive
// parts that do not depend on each other's results run together as one stage. before is
// the number of rounds in earlier stages, and of the number in all stages.
func (l *Lab) stage(before, of int) *Experiment {
	e := &Experiment{Dir: l.Dir, Kernel: l.Kernel, Parallel: l.Parallel, Diverging: true}
	if l.Progress != nil {
		e.Progress = func(done, _ int) { l.Progress(before+done, of) }
	}
	return e
}

// rounds returns the total number of rounds of a part.
func (p *Part) rounds() (int, error) {
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
	results := make([]Result, len(rows))
	for i, r := range rows {
		var runs []outcome
		for _, t := range r.trials {
			o := outcome{Summary: done[t]}
			if o.validation, err = readValidation(filepath.Join(l.Dir, e.Trials[t].folder())); err != nil {
				return nil, err
			}
			runs = append(runs, o)
		}
		if len(runs) > 0 {
			maps.Copy(r.Figures, result(runs))
		}
		results[i] = r.Result
	}
	for i := range parts {
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
		if len(p.Baselines) > 0 && variants[0].plan.Evaluate.Holdout > 0 {
			return nil, fmt.Errorf("baselines are scored on all clients, but these plans only on held-out clients: remove the baselines or evaluate.holdout")
		}
		fleets, err := Baselines(ctx, d, variants[0].plan, p.Baselines, l.Parallel, filepath.Join(l.Dir, p.Name, d.Name))
		if err != nil {
			return nil, err
		}
		base := Result{Part: p.Name, Dataset: d.Name, Generated: d.Generated, Seeds: 1}
		for i, f := range fleets {
			r := base
			r.Method, r.Figures = p.Baselines[i], map[string]Figure{}
			for name, v := range ofFleet(f.Fleet) {
				r.Figures[name] = figure([]float64{v})
			}
			rows = append(rows, row{Result: r})
		}
		for _, v := range variants {
			r := row{Result: base}
			r.Method, r.At, r.Seeds, r.Figures = v.method, v.at, len(p.Seeds), map[string]Figure{}
			if t := p.method(v.method).tuned; t != nil {
				for i, a := range t.part.Grid {
					if x, err := strconv.ParseFloat(best[v.method].at[i], 64); err == nil {
						r.Figures["best "+a.Key] = figure([]float64{x})
					}
				}
			}
			for _, seed := range p.Seeds {
				plan := *v.plan
				plan.Seed, plan.Data = seed, name
				r.trials = append(r.trials, len(e.Trials))
				e.Trials = append(e.Trials, Trial{Plan: &plan, Dataset: d, Part: p.Name})
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// choose returns, for each method of an earlier part, the point of that part's grid with
// the lowest validation loss on the given dataset. If the earlier part does not have this
// dataset, choose uses the first dataset of that part.
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
		least := math.Inf(1)
		for _, pt := range from.points() {
			for _, r := range earlier {
				if r.Part != from.Name || r.Dataset != dataset || r.Method != m.Name || !slices.Equal(r.At, pt.at) {
					continue
				}
				if loss, ok := r.Figures["validation_loss"]; ok && loss.Mean < least {
					least, best[m.Name] = loss.Mean, pt
				}
			}
		}
		if math.IsInf(least, 1) {
			return nil, fmt.Errorf("method %s has no validation loss in %s: all its runs diverged, or evaluate.every is 0", m.Name, from.Name)
		}
	}
	return best, nil
}

// test compares the forecasts of method Against with those of each other method. It
// computes the shares of clients, over all seeds, for which the forecasts of Against are
// better, worse, or not significantly different.
func (l *Lab) test(e *Experiment, done []*run.Summary, p *Part, rows []row) error {
	if p.Against == "" {
		return nil
	}
	against := map[int]map[string][]float64{} // errors of Against, by trial and client
	for _, r := range rows {
		if r.Part != p.Name || len(r.trials) == 0 || r.Method == p.Against {
			continue
		}
		for _, other := range rows {
			if other.Part != r.Part || other.Dataset != r.Dataset || other.Method != p.Against || !slices.Equal(other.At, r.At) {
				continue
			}
			var better, worse, same float64
			for k := range r.trials {
				o := other.trials[k]
				if done[o] == nil || done[r.trials[k]] == nil {
					continue // diverged
				}
				var err error
				if against[o] == nil {
					if against[o], err = l.errors(e.Trials[o]); err != nil {
						return err
					}
				}
				theirs, err := l.errors(e.Trials[r.trials[k]])
				if err != nil {
					return err
				}
				b, w, s := dieboldMariano(against[o], theirs)
				better, worse, same = better+b, worse+w, same+s
			}
			n := better + worse + same
			if n == 0 {
				continue
			}
			for name, v := range map[string]float64{"dm_better": better, "dm_worse": worse, "dm_same": same} {
				r.Figures[name] = figure([]float64{v / n})
			}
		}
	}
	return nil
}

// dieboldMariano counts the clients for which the errors in ours are significantly smaller
// than those in theirs, significantly larger, or not significantly different.
func dieboldMariano(ours, theirs map[string][]float64) (better, worse, same float64) {
	for client, e := range ours {
		c, err := metric.DieboldMariano(e, theirs[client], metric.Squared)
		switch {
		case err != nil || !c.Significant():
			same++ // even if the statistic is undefined
		case c.Statistic < 0:
			better++
		default:
			worse++
		}
	}
	return better, worse, same
}

// errors returns the forecast errors of a run by client, in chronological order. A forecast of
// several steps counts as one error, the root mean square over its steps, because errors
// of the same forecast are not independent.
func (l *Lab) errors(t Trial) (map[string][]float64, error) {
	rows, err := run.Read[run.Forecast](filepath.Join(l.Dir, t.folder()), "forecasts")
	if err != nil {
		return nil, err
	}
	out := map[string][]float64{}
	for len(rows) > 0 {
		first, sum, n := rows[0], 0.0, 0.0
		for len(rows) > 0 && rows[0].Client == first.Client && rows[0].Cutoff.Equal(first.Cutoff) {
			if e := rows[0].Forecast - rows[0].Actual; !math.IsNaN(e) {
				sum, n = sum+e*e, n+1
			}
			rows = rows[1:]
		}
		if n > 0 {
			out[first.Client] = append(out[first.Client], math.Sqrt(sum/n))
		}
	}
	return out, nil
}
