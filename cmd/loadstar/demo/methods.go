package demo

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"loadstar/agent/live"
	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/forecast"
	"loadstar/forecast/issue"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// The methods that are compared, in the order of the table.
const (
	week = iota
	month
	ridge
	alone
	federated
	methods
)

var methodNames = [methods]string{"last week's profile", "median of 28 days", "ridge, a week of lags", "each building alone", "Loadstar, federated"}

// every is the time between the forecasts that are compared, in seconds. Clients learn from
// the forecasts at these times.
const every = 6 * 60 * 60

// paper contains each method's forecasts for the days that arrived after training.
type paper struct {
	stage *stage
	first int64 // cutoff of the first forecast that is compared

	mu     sync.Mutex
	rows   [methods]map[string][]float64 // by client: a row of 24 values for each cutoff
	inside map[string][2]int             // by client: number of loads inside the federated forecasts' interval, and number of all loads
}

func newPaper(s *stage) *paper {
	p := &paper{stage: s, first: s.arrive - s.arrive%every + every, inside: map[string][2]int{}}
	for i := range p.rows {
		p.rows[i] = map[string][]float64{}
	}
	return p
}

// cutoffs returns the number of forecasts of a client that are compared.
func (p *paper) cutoffs() int { return int((p.stage.end-1-p.first)/every) + 1 }

// set records a method's forecast for step k after a cutoff.
func (p *paper) set(method int, client string, cutoff int64, k int, v float64) {
	n := (cutoff - p.first) / every
	if cutoff < p.first || (cutoff-p.first)%every != 0 || n >= int64(p.cutoffs()) || k < 0 || k >= ahead {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := p.rows[method][client]
	if rows == nil {
		rows = make([]float64, p.cutoffs()*ahead)
		for i := range rows {
			rows[i] = math.NaN()
		}
		p.rows[method][client] = rows
	}
	rows[int(n)*ahead+k] = v
}

// take records the forecasts that agents issued.
func (p *paper) take(all []*live.Issued) {
	for _, x := range all {
		i := p.meter(x.Client)
		for k, r := range x.Rows {
			if len(r.Values) != 3 || math.IsNaN(r.Values[1]) {
				continue
			}
			p.set(federated, x.Client, x.Cutoff, k, r.Values[1])
			y := at(p.stage.all.Meter(i), r.Time, p.stage.all.Seconds())
			if x.Cutoff >= p.first && x.Cutoff%every == 0 && !math.IsNaN(y) {
				p.cover(x.Client, r.Values[0] <= y && y <= r.Values[2])
			}
		}
	}
}

func (p *paper) cover(client string, in bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.inside[client]
	n[1]++
	if in {
		n[0]++
	}
	p.inside[client] = n
}

func (p *paper) meter(client string) int {
	for i := range p.stage.all.Len() {
		if p.stage.all.Meter(i).ID == client {
			return i
		}
	}
	return -1
}

// others makes the forecasts of the methods that need no fleet: last week's profile, the
// median of 28 days, ridge regression, and the same model trained by each building alone.
func (p *paper) others(ctx context.Context, k *kernel.Set, plan []byte, dir string) error {
	p.lastWeek()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return errors.Join(p.baseline(ctx, month, "rolling-median"), p.baseline(ctx, ridge, "ridge-rich"))
	})
	g.Go(func() error { return p.alone(ctx, k, plan, dir) })
	return g.Wait()
}

func (p *paper) lastWeek() {
	d := p.stage.all
	for i := range d.Len() {
		m := d.Meter(i)
		for c := p.first; c < p.stage.end; c += every {
			for h := range ahead {
				t := c + int64(h)*d.Seconds()
				p.set(week, m.ID, c, h, at(m, time.Unix(t, 0).In(d.Clock).AddDate(0, 0, -7).Unix(), d.Seconds()))
			}
		}
	}
}

// split divides all days in the same way as the fleet, which has only the first days.
func split() series.Split {
	const all = trainDays + checkDays + testDays
	return series.Split{Train: float64(trainDays) / all, Validation: float64(checkDays) / all}
}

// baseline fits a simple method to each building, and forecasts whenever the method has the
// loads that it needs.
func (p *paper) baseline(ctx context.Context, method int, name string) error {
	d := p.stage.all
	frame, err := series.NewFramer(d, series.Layout{Lookback: 24, Horizon: 1, Targets: ahead, Inputs: []series.Input{{Name: "load"}}}, split())
	if err != nil {
		return err
	}
	out := make([]float64, ahead)
	for i := range d.Len() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m := d.Meter(i)
		b, err := forecast.NewBaseline(name)
		if err == nil {
			err = b.Fit(forecast.Client{Frame: frame, Meter: m})
		}
		if err != nil {
			return err
		}
		for c := p.first; c < p.stage.end; c += every {
			next := int((c - m.Start) / d.Seconds())
			known := out[:min(ahead, len(m.Load)-next)] // omits steps after the last reading
			if !b.Forecast(known, next-1) {
				continue
			}
			for h, v := range known {
				p.set(method, m.ID, c, h, v)
			}
		}
	}
	return nil
}

// alone trains the model for each building from its own readings, and replays the days after
// training like an agent, with the same corrections and the same ladder of fallbacks.
func (p *paper) alone(ctx context.Context, k *kernel.Set, plan []byte, dir string) (err error) {
	q, err := recipe.Read(plan)
	if err != nil {
		return err
	}
	workers := min(runtime.NumCPU(), 4)
	_, err = sim.Run(ctx, sim.Config{Plan: q, Dataset: p.stage.all, Dir: dir, Kernel: k, Workers: workers, Memory: 256 << 20, Save: time.Hour})
	if err != nil {
		return err
	}
	f, err := serve.Open(dir, p.stage.all, k)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	d := p.stage.all
	r := serve.NewReplay(d, f.Model, nil)
	r.Each = func(x issue.Forecast) {
		for h, row := range x.Rows {
			if len(row.Values) == 3 {
				p.set(alone, x.Client, x.Cutoff, h, row.Values[1])
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range d.Len() {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c, err := f.Client(d.Meter(i).ID)
			if err != nil {
				return err
			}
			s, err := issue.NewState(issue.Config{Step: d.Interval, Clock: d.Clock, H: ahead})
			if err != nil {
				return err
			}
			// Replay in two parts, so that the first forecast follows as many replayed days as the
			// first forecast of an agent with a new model.
			return errors.Join(r.Advance(s, i, &c, nil, p.first), r.Advance(s, i, &c, nil, p.stage.end))
		})
	}
	return g.Wait()
}

// Method contains the results of a method.
type Method struct {
	Name string `json:"name"`
	// ErrorPercent is the mean absolute error in per cent of the mean load.
	ErrorPercent       float64 `json:"error_percent"`
	MedianErrorPercent float64 `json:"median_error_percent"`
	// RelativeMAE is the mean absolute error divided by that of last week's profile.
	RelativeMAE       float64 `json:"relative_mae"`
	MedianRelativeMAE float64 `json:"median_relative_mae"`
	// BestFor is the number of buildings for which the method has the lowest error.
	BestFor int `json:"best_for"`
}

// compare computes the errors over the steps that all methods forecast. It also returns the
// number of these steps, and the number of buildings that have any of them.
func (p *paper) compare() (out []Method, steps, clients int) {
	d := p.stage.all
	var errs, relative [methods][]float64
	best := [methods]int{}
	for i := range d.Len() {
		m := d.Meter(i)
		var sum [methods]float64
		load, n := 0.0, 0
		for c := range p.cutoffs() {
		next:
			for h := range ahead {
				y := at(m, p.first+int64(c)*every+int64(h)*d.Seconds(), d.Seconds())
				var v [methods]float64
				for k := range v {
					rows := p.rows[k][m.ID]
					if rows == nil || math.IsNaN(y) || math.IsNaN(rows[c*ahead+h]) {
						continue next
					}
					v[k] = math.Abs(rows[c*ahead+h] - y)
				}
				for k := range v {
					sum[k] += v[k]
				}
				load += math.Abs(y)
				n++
			}
		}
		if n == 0 || sum[week] == 0 || load == 0 {
			continue
		}
		steps, clients = steps+n, clients+1
		for k := range sum {
			errs[k] = append(errs[k], 100*sum[k]/load)
			relative[k] = append(relative[k], sum[k]/sum[week])
		}
		best[slices.Index(sum[:], slices.Min(sum[:]))]++
	}
	for k := range methods {
		out = append(out, Method{
			Name: methodNames[k], ErrorPercent: mean(errs[k]), MedianErrorPercent: median(errs[k]),
			RelativeMAE: mean(relative[k]), MedianRelativeMAE: median(relative[k]), BestFor: best[k],
		})
	}
	return out, steps, clients
}

// coverage returns the median over buildings of the share of loads between P10 and P90.
func (p *paper) coverage() float64 {
	var all []float64
	for _, n := range p.inside {
		all = append(all, float64(n[0])/float64(n[1]))
	}
	return median(all)
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
