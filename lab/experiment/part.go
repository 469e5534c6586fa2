package experiment

import (
	"context"
	"fmt"
	"math"
	"path/filepath"

	"loadstar/lab/run"
	"loadstar/lab/sim"
	"loadstar/metric"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Lab is where experiments are carried out.
type Lab struct {
	Dir      string // of all runs
	Kernel   *kernel.Set
	Parallel int
	// Open returns a dataset by its name under datasets/. It stays open.
	Open func(name string) (*series.Dataset, error)
	// Progress is called with the rounds done, of how many; it may be nil.
	Progress func(done, of int)
}

// row is a result whose runs are not done yet.
type row struct {
	Result
	trials []int
}

// Run carries an experiment out and returns its results, part by part, dataset by
// dataset, baselines first.
func (l *Lab) Run(ctx context.Context, s *Spec) ([]Result, error) {
	e := &Experiment{Dir: l.Dir, Kernel: l.Kernel, Parallel: l.Parallel}
	var rows []row
	for i := range s.Parts {
		more, err := l.part(ctx, e, &s.Parts[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Parts[i].Name, err)
		}
		rows = append(rows, more...)
	}
	if l.Progress != nil {
		of := e.Rounds()
		e.Progress = func(done int) { l.Progress(done, of) }
	}
	done, err := e.Run(ctx)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(rows))
	for i, r := range rows {
		if len(r.trials) > 0 {
			var runs []*sim.Summary
			for _, t := range r.trials {
				runs = append(runs, done[t])
			}
			r.Figures = result(runs)
		}
		results[i] = r.Result
	}
	for i := range s.Parts {
		if err := l.test(e, &s.Parts[i], rows, results); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Parts[i].Name, err)
		}
	}
	return results, nil
}

// part adds the trials of a part, and does its baselines at once.
func (l *Lab) part(ctx context.Context, e *Experiment, p *Part) ([]row, error) {
	variants, err := p.plans()
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, name := range p.Datasets {
		d, err := l.Open(name)
		if err == nil && p.Clients > 0 {
			d, err = d.First(p.Clients)
		}
		if err != nil {
			return nil, err
		}
		fleets, err := Baselines(ctx, d, variants[0].plan, p.Baselines, l.Parallel, filepath.Join(l.Dir, p.Name, d.Name))
		if err != nil {
			return nil, err
		}
		base := Result{Part: p.Name, Dataset: d.Name, Generated: d.Generated, Seeds: 1}
		for i, f := range fleets {
			r := base
			r.Method, r.Figures = p.Baselines[i], map[string]Figure{}
			for name, v := range ofFleet(f) {
				r.Figures[name] = figure([]float64{v})
			}
			rows = append(rows, row{Result: r})
		}
		for _, v := range variants {
			r := row{Result: base}
			r.Method, r.At, r.Seeds = v.method, v.at, len(p.Seeds)
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

// test counts, for every method but one, the clients on which that one's forecasts
// are better, worse, or not different by more than chance: of all seeds together.
func (l *Lab) test(e *Experiment, p *Part, rows []row, results []Result) error {
	if p.Against == "" {
		return nil
	}
	for i, r := range rows {
		if r.Part != p.Name || len(r.trials) == 0 || r.Method == p.Against {
			continue
		}
		for _, other := range rows {
			if other.Part != r.Part || other.Dataset != r.Dataset || other.Method != p.Against || fmt.Sprint(other.At) != fmt.Sprint(r.At) {
				continue
			}
			var better, worse, same float64
			for k := range r.trials {
				b, w, s, err := l.dieboldMariano(e.Trials[other.trials[k]], e.Trials[r.trials[k]])
				if err != nil {
					return err
				}
				better, worse, same = better+b, worse+w, same+s
			}
			n := better + worse + same
			for name, v := range map[string]float64{"dm_better": better, "dm_worse": worse, "dm_same": same} {
				results[i].Figures[name] = figure([]float64{v / n})
			}
		}
	}
	return nil
}

// dieboldMariano compares two runs' forecasts client by client.
func (l *Lab) dieboldMariano(a, b Trial) (better, worse, same float64, err error) {
	ea, err := l.errors(a)
	if err != nil {
		return 0, 0, 0, err
	}
	eb, err := l.errors(b)
	if err != nil {
		return 0, 0, 0, err
	}
	for client, e := range ea {
		c, err := metric.DieboldMariano(e, eb[client], metric.Squared)
		switch {
		case err != nil || !c.Significant():
			same++ // no statistic is no difference
		case c.Statistic < 0:
			better++
		default:
			worse++
		}
	}
	return better, worse, same, nil
}

// errors returns the errors of a run's forecasts, by client, in the order of time.
func (l *Lab) errors(t Trial) (map[string][]float64, error) {
	rows, err := run.ReadForecasts(filepath.Join(l.Dir, t.folder()))
	if err != nil {
		return nil, err
	}
	out := map[string][]float64{}
	for _, r := range rows {
		if e := r.Forecast - r.Actual; !math.IsNaN(e) {
			out[r.Client] = append(out[r.Client], e)
		}
	}
	return out, nil
}
