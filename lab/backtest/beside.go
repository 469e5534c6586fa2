package backtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"loadstar/internal/textfmt"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// Of returns a backtest with the task of a resolved plan, that is, its horizon, targets, split,
// stride and reference.
func Of(d *series.Dataset, p *fed.Plan, workers int) forecast.Backtest {
	return forecast.Backtest{
		Dataset: d, Horizon: p.Model.Horizon.Steps(), Targets: p.Model.Targets.Steps(), Part: series.Test, Workers: workers, Stride: p.Evaluate.Stride.Steps(),
		Reference: forecast.Reference(p.Evaluate.Reference),
		Split:     series.Split{Train: p.Model.Split.Train, Validation: p.Model.Split.Validation},
	}
}

// Default lists the baselines that are shown with every run: last week's profile, which needs
// no fitting, and the strongest baselines, which are the rolling median for homes and
// ridge-rich for buildings.
var Default = []string{"naive-week", "rolling-median", "ridge-rich"}

// besideClients is the maximum number of clients for which baselines are fitted to a run's
// task. It limits the time that fitting takes: ridge-rich needs about a tenth of a second per
// client for 24 targets.
const besideClients = 200

// Beside returns the scores, errors by hour and step, and curves of baselines on the task of
// the finished run in the folder dir. In a large fleet, it scores evenly spaced clients and all
// clients with curves. If the folder already contains the baselines, Beside reads them;
// otherwise it computes them and stores them there.
func Beside(ctx context.Context, d *series.Dataset, p *fed.Plan, dir string, names []string, workers int) (run.Beside, error) {
	b, err := run.ReadBeside(dir)
	if err != nil || has(b, names) {
		return b, err
	}
	clients, err := run.Read[run.Client](dir, "clients")
	if err != nil {
		return b, err
	}
	curves, err := run.Read[run.Curve](dir, "curves")
	if err != nil {
		return b, err
	}
	test := Of(d, p, workers)
	test.Concurrent = true
	var drawn map[string]bool
	test.Clients, drawn = chosen(d, clients, curves)
	b = run.Beside{}
	for _, name := range names {
		if err := beside(ctx, test, name, drawn, &b); err != nil {
			return b, err
		}
	}
	return b, b.Write(dir)
}

// has reports whether the tables contain all the named baselines.
func has(b run.Beside, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		return !slices.ContainsFunc(b.Scores, func(s run.Baseline) bool { return s.Method == name })
	})
}

// chosen returns the clients to score, and the names of those whose curves are stored.
func chosen(d *series.Dataset, clients []run.Client, curves []run.Curve) (indices []int, drawn map[string]bool) {
	wanted, drawn := map[string]bool{}, map[string]bool{}
	n := len(clients)
	for i := range min(n, besideClients) {
		wanted[clients[i*n/min(n, besideClients)].Client] = true
	}
	for _, c := range curves {
		wanted[c.Client], drawn[c.Client] = true, true
	}
	for i := range d.Len() {
		if wanted[d.Meter(i).ID] {
			indices = append(indices, i)
		}
	}
	return indices, drawn
}

// profile contains a client's absolute errors by hour and by step, its absolute loads, and its
// curves.
type profile struct {
	hours, steps []sums
	load         sums
	curves       map[int64]*run.BaselineCurve
}

type sums struct {
	sum float64
	n   int
}

func (s *sums) add(v float64) { s.sum, s.n = s.sum+v, s.n+1 }

func (s sums) mean() float64 { return s.sum / float64(s.n) }

// beside adds the tables of a baseline to b.
func beside(ctx context.Context, test forecast.Backtest, name string, drawn map[string]bool, b *run.Beside) error {
	var mu sync.Mutex
	all := map[string]*profile{}
	leads := run.Leads{Targets: test.Targets, Stride: test.Stride}
	scores, err := test.Run(ctx, name, func(f forecast.Forecast) error {
		mu.Lock()
		p := all[f.Client]
		if p == nil {
			p = &profile{hours: make([]sums, 24), steps: make([]sums, test.Targets), curves: map[int64]*run.BaselineCurve{}}
			all[f.Client] = p
		}
		mu.Unlock()
		e := math.Abs(f.Forecast - f.Actual)
		step := int(f.Time.Sub(f.Cutoff)/test.Dataset.Interval) - test.Horizon + 2
		p.hours[f.Time.Hour()].add(e)
		p.steps[step-1].add(e)
		p.load.add(math.Abs(f.Actual))
		if !drawn[f.Client] {
			return nil
		}
		c := p.curves[f.Time.Unix()]
		if c == nil {
			c = &run.BaselineCurve{Method: name, Client: f.Client, Time: f.Time, Near: run.Missing, Far: run.Missing}
			p.curves[f.Time.Unix()] = c
		}
		if leads.Near(step) {
			c.Near = run.Rounded(f.Forecast)
		}
		if leads.Far(step) {
			c.Far = run.Rounded(f.Forecast)
		}
		return nil
	})
	if err != nil {
		return err
	}
	hours, steps := make([]sums, 24), make([]sums, test.Targets)
	for i := range scores {
		s := &scores[i]
		p := &s.Overall
		b.Scores = append(b.Scores, run.Baseline{Method: name, Client: s.ID, MAE: p.MAE(), RMSE: p.RMSE(), NMAE: p.NMAE(), RelativeMAE: p.RelativeMAE(), Reference: string(s.Reference)})
		of := all[s.ID]
		if of == nil {
			continue
		}
		relative := func(to, from []sums) {
			for k, x := range from {
				if load := of.load.mean(); x.n > 0 && load > 0 {
					to[k].add(x.mean() / load)
				}
			}
		}
		relative(hours, of.hours)
		relative(steps, of.steps)
		var curve []run.BaselineCurve
		for _, c := range of.curves {
			if !math.IsNaN(c.Near) || !math.IsNaN(c.Far) {
				curve = append(curve, *c)
			}
		}
		slices.SortFunc(curve, func(a, b run.BaselineCurve) int { return a.Time.Compare(b.Time) })
		b.Curves = append(b.Curves, curve...)
	}
	for h, s := range hours {
		b.Profile = append(b.Profile, run.BaselineProfile{Method: name, By: "hour", At: h, Clients: s.n, NMAE: s.mean()})
	}
	for k, s := range steps {
		b.Profile = append(b.Profile, run.BaselineProfile{Method: name, By: "step", At: k + 1, Clients: s.n, NMAE: s.mean()})
	}
	return nil
}

// Enough returns an error unless at least one client was scored, because a table of NaNs would
// look like a result.
func Enough(d *series.Dataset, b forecast.Backtest, results ...metric.Fleet) error {
	for _, f := range results {
		if f["mae"].Count > 0 {
			return nil
		}
	}
	longest := 0
	for i := range d.Len() {
		longest = max(longest, len(d.Meter(i).Load))
	}
	day := d.StepsPerDay()
	least := 7*day + b.Horizon + b.Targets - 1
	var found strings.Builder
	fmt.Fprintf(&found, "%s has %s, and the longest has %s", d.Name, textfmt.Count(d.Len(), "client"), textfmt.Count(longest, "reading"))
	if longest >= day {
		fmt.Fprintf(&found, " (%s)", textfmt.Count(longest/day, "day"))
	}
	return fmt.Errorf("nothing could be scored: a forecast needs the %s before it without a gap and %s after it, within the test split (the last part of each series); %s: "+
		"use more readings (70 days fill a test split of 10 %%), another split with --part, or look for gaps with loadstar data check",
		textfmt.Count(7*day, "reading"), textfmt.Count(least-7*day, "reading"), found.String())
}
