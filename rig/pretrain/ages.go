package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"loadstar/fed/serve"
	"loadstar/forecast"
	"loadstar/forecast/issue"
	"loadstar/rig/bench/skill"
	"loadstar/series"
	"loadstar/series/feature"
)

// scored are the ages at which forecasts are scored, in days.
var scored = []int{1, 2, 4, 7, 14, 30, 90}

const (
	day    = 24 * 3600
	ahead  = 24     // hours to forecast
	empty  = 8 * 24 // hours without readings before the first reading, which inputs may read
	issues = 4      // number of issues on a scored day
	later  = 2 * 24 // hours that are read after the first issue
	every  = 6      // hours between issues
	// Boosting is fitted for every third of the scored days, because it takes most of the time.
	peerEvery = 3
	hour      = 60 * 60 // seconds
)

// The methods. Generic is the method that serves a client.
const (
	dayOf    = "day before"
	median   = "rolling median"
	ridge    = "ridge"
	rich     = "ridge-rich"
	boosting = "local boosting"
	generics = "generic"
	onPeers  = "generic, clients of boosting"
)

var methods = []string{dayOf, median, ridge, rich, boosting, onPeers, generics}

// options selects what to score.
type options struct {
	part   string
	starts int
	// clients is the number of clients, and peer the number of clients to which boosting is
	// fitted.
	clients, peer int
}

// sums contains the sums of one client at one age, by method. They are the errors, and last
// week's errors on the same targets.
type sums struct {
	of         map[string][2]float64
	inside, n  float64
	above, low float64 // loads above and below the interval
}

// layout is the layout for methods that are fitted to one client.
var layout = series.Layout{Lookback: 12, Horizon: 1, Targets: ahead, Inputs: []series.Input{{Name: "load"}}}

// table contains the sums of all clients, by age.
type table struct {
	mu      sync.Mutex
	clients []map[int]*sums
}

// run scores all clients of a dataset. A client of a given age is a real client whose
// readings before that age are removed. It is scored on the same days at every age.
func (o options) run(ctx context.Context, d *series.Dataset, m *serve.Model) (*table, error) {
	if d.StepsPerDay() != hours {
		return nil, errors.New("only hourly readings can be scored")
	}
	whole, err := series.NewFramer(d, layout, series.DefaultSplit)
	if err != nil {
		return nil, err
	}
	t := &table{clients: make([]map[int]*sums, d.Len())}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range d.Len() {
		if o.clients > 0 && !spaced(i, o.clients, d.Len()) {
			continue
		}
		boost := spaced(i, o.peer, d.Len())
		g.Go(func() error {
			var p *peer
			if boost {
				var err error
				if p, err = startPeer(ctx); err != nil {
					return err
				}
				defer p.stop()
			}
			return o.client(ctx, t, d, whole, m, i, p)
		})
	}
	return t, g.Wait()
}

// spaced reports whether number i of all is one of n evenly spaced numbers.
func spaced(i, n, all int) bool { return (i+1)*n/all > i*n/all }

// client scores one client.
func (o options) client(ctx context.Context, t *table, d *series.Dataset, whole *series.Framer, m *serve.Model, i int, p *peer) error {
	meter := d.Meter(i)
	n := float64(len(meter.Load))
	from, to := int(testFrom*n), len(meter.Load)-later
	if o.part == "validation" {
		from, to = int(validationFrom*n), int(testFrom*n)-later
	}
	all := map[int]*sums{}
	for _, age := range scored {
		all[age] = &sums{of: map[string][2]float64{}}
	}
	for k := range o.starts {
		at := from + (to-from)*k/max(o.starts-1, 1)
		// Recorded issues are at multiples of 6 hours in UTC.
		at += int(mod(-(meter.Start+int64(at)*hour), every*hour)) / hour
		if at+later > len(meter.Load) {
			at -= every
		}
		if !dense(meter.Load[max(at-7*hours, 0):at]) {
			continue
		}
		for _, age := range scored {
			if err := ctx.Err(); err != nil {
				return err
			}
			if at < age*hours {
				continue
			}
			with := p
			if k%peerEvery != 0 {
				with = nil
			}
			if err := o.one(all[age], d, whole, m, meter, at, age, with); err != nil {
				return fmt.Errorf("meter %s at age %d: %w", meter.ID, age, err)
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients[i] = all
	return nil
}

// dense reports whether nearly all loads are known.
func dense(load []float32) bool {
	missing := 0
	for _, v := range load {
		if series.Missing(v) {
			missing++
		}
	}
	return 10*missing <= len(load)
}

func mod(a, b int64) int64 {
	if a %= b; a < 0 {
		a += b
	}
	return a
}

// one scores the issues of the day that begins when a client reaches the given age in days. at
// is the step of the first issue.
func (o options) one(s *sums, d *series.Dataset, whole *series.Framer, m *serve.Model, meter series.Meter, at, age int, p *peer) error {
	cutoff := meter.Start + int64(at)*hour
	// Most methods see a series that begins with the first reading.
	young := meter.Cut(cutoff-int64(age)*day, cutoff+later*hour, hour)
	young.Load = slices.Clone(young.Load)
	about := series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Country: d.Country, Weather: d.Weather, StaticNames: d.StaticNames}
	own, err := series.NewDataset(about, []series.Meter{young})
	if err != nil {
		return err
	}
	known := float64(age*hours) / float64(len(young.Load))
	frame, err := series.NewFramer(own, layout, series.Split{Train: 0.8 * known, Validation: 0.2 * known})
	if err != nil {
		return err
	}
	load := func(step int) float64 { return float64(meter.Load[step]) }
	// add adds the errors of forecasts whose first target is the step from.
	add := func(method string, from int, value func(i int) float64) {
		x := s.of[method]
		for i := range ahead {
			before := whole.Lag(meter, from+i, 7)
			if from+i >= len(meter.Load) || before < 0 {
				continue
			}
			if e := math.Abs(value(i) - load(from+i)); !math.IsNaN(e) && !math.IsNaN(load(before)) {
				x[0] += e
				x[1] += math.Abs(load(before) - load(from+i))
			}
		}
		s.of[method] = x
	}
	for method, b := range map[string]forecast.Baseline{dayOf: baseline("naive-day"), median: baseline("rolling-median"), ridge: baseline("ridge"), rich: baseline("ridge-rich")} {
		if b.Fit(forecast.Client{Frame: frame, Meter: young}) != nil {
			continue // there are too few readings
		}
		for k := range issues {
			out := make([]float64, ahead)
			if b.Forecast(out, age*hours+k*every-1) {
				add(method, at+k*every, func(i int) float64 { return out[i] })
			}
		}
	}
	state, err := issue.NewState(issue.Config{Step: d.Interval, Clock: d.Clock, H: ahead})
	if err != nil {
		return err
	}
	replay := serve.NewReplay(own, nil, m)
	anyone := m.Anyone()
	replay.Each = func(f issue.Forecast) {
		k := int(f.Cutoff-cutoff) / hour
		if f.Cutoff < cutoff || k >= issues*every {
			return
		}
		add(generics, at+k, func(i int) float64 { return f.Rows[i].Values[1] })
		if p != nil {
			add(onPeers, at+k, func(i int) float64 { return f.Rows[i].Values[1] })
		}
		for i, r := range f.Rows {
			if v := load(at + k + i); !math.IsNaN(v) && r.Source == issue.Generic {
				s.n++
				if v < r.Values[0] {
					s.low++
				} else if v > r.Values[2] {
					s.above++
				} else {
					s.inside++
				}
			}
		}
	}
	if err := replay.Advance(state, 0, nil, &anyone, cutoff+issues*every*hour); err != nil {
		return err
	}
	if p == nil {
		return nil
	}
	return p.add(s, m, about, meter, cutoff, age)
}

// baseline returns a baseline, which must exist.
func baseline(name string) forecast.Baseline {
	b, err := forecast.NewBaseline(name)
	if err != nil {
		panic(err)
	}
	return b
}

// peer fits gradient boosting to the readings of a client.
type peer struct {
	*skill.Peer
	dir string
}

func startPeer(ctx context.Context) (*peer, error) {
	dir, err := os.MkdirTemp("", "loadstar-ages-")
	if err != nil {
		return nil, err
	}
	p, err := skill.StartPeer(ctx, skill.Sklearn)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &peer{p, dir}, nil
}

func (p *peer) stop() {
	p.Stop()
	_ = os.RemoveAll(p.dir) // a temporary folder
}

// leastRows is the minimum number of training rows for boosting, and mostRows the maximum
// number that is used.
const leastRows, mostRows = 150, 4000

// add fits boosting to the rows that a client has at a given age, with the inputs of the
// generic model. The newest fifth of the rows determines the number of trees.
func (p *peer) add(s *sums, m *serve.Model, about series.Dataset, meter series.Meter, cutoff int64, age int) error {
	x := meter.Cut(cutoff-int64(age)*day-empty*hour, cutoff+later*hour, hour)
	x.Load = slices.Clone(x.Load)
	for i := range empty {
		x.Load[i] = float32(math.NaN())
	}
	d, err := series.NewDataset(about, []series.Meter{x})
	if err != nil {
		return err
	}
	q, err := serve.YoungProblem(m.Problem, d)
	if err != nil {
		return err
	}
	end := empty + age*hours // the first unknown step
	scaling := q.ScalingOver(x, max(empty, end-30*hours), end)
	rows := q.Newest(x, scaling, empty).(*feature.Rows)
	var train, test []series.Example
	for last := empty + hours - 1; last < end; last++ {
		for i := range ahead {
			if t := last + 1 + i; t < end && !series.Missing(x.Load[t]) {
				train = append(train, series.Example{Last: last, Target: i})
			}
		}
	}
	for k := range issues {
		for i := range ahead {
			if t := end + k*every + i; !series.Missing(x.Load[t]) {
				test = append(test, series.Example{Last: end + k*every - 1, Target: i})
			}
		}
	}
	if len(train) < leastRows || len(test) == 0 {
		return nil
	}
	if skip := (len(train) + mostRows - 1) / mostRows; skip > 1 {
		// Every 24 consecutive rows belong to one origin, so the distance between the chosen
		// rows must have no common divisor with 24.
		for skip%2 == 0 || skip%3 == 0 {
			skip++
		}
		var some []series.Example
		for i := 0; i < len(train); i += skip {
			some = append(some, train[i])
		}
		train = some
	}
	part := len(train) * 4 / 5
	for name, at := range map[string][]series.Example{"train": train[:part], "validation": train[part:], "test": test} {
		if err := skill.WriteSplit(filepath.Join(p.dir, name), x, rows, at); err != nil {
			return err
		}
	}
	request := skill.NewRequest(skill.Sklearn, "absolute_error")
	request.Folders, request.Deviations, request.Inputs, request.Most = []string{p.dir}, []float64{scaling.Features.Deviation}, rows.Inputs(), 200
	fitted, err := p.Fit(request)
	if err != nil {
		return err
	}
	// The peer returns the mean error of the test rows. Compute last week's error on the same
	// rows.
	e := s.of[boosting]
	e[0] += fitted.Test[0] * float64(len(test))
	for _, one := range test {
		t := one.Last + 1 + one.Target
		at := int((x.Start-meter.Start)/hour) + t - 7*hours
		if at < 0 || series.Missing(meter.Load[at]) {
			return nil // the targets would differ
		}
		e[1] += math.Abs(float64(meter.Load[at] - x.Load[t]))
	}
	s.of[boosting] = e
	return nil
}

// print prints the table as Markdown: medians over clients, with means in parentheses.
func (t *table) print(w io.Writer, title string) {
	n := 0
	for _, c := range t.clients {
		if c != nil {
			n++
		}
	}
	fmt.Fprintf(w, "\n%s: %d clients, error relative to last week's, median client (mean)\n\n| days of readings |", title, n)
	for _, age := range scored {
		fmt.Fprintf(w, " %d |", age)
	}
	fmt.Fprintf(w, "\n|---%s|\n", strings.Repeat("|---", len(scored)))
	for _, method := range methods {
		line, any := "| "+method+" |", false
		for _, age := range scored {
			var all []float64
			for _, c := range t.clients {
				if c == nil {
					continue
				}
				if x := c[age].of[method]; x[1] > 0 {
					all = append(all, x[0]/x[1])
				}
			}
			if len(all) == 0 {
				line += " – |"
				continue
			}
			any = true
			slices.Sort(all)
			sum := 0.0
			for _, v := range all {
				sum += v
			}
			line += fmt.Sprintf(" %.3f (%.3f) |", (all[(len(all)-1)/2]+all[len(all)/2])/2, sum/float64(len(all)))
		}
		if any {
			fmt.Fprintln(w, line)
		}
	}
	line, below := "| coverage of P10 to P90, % |", "| loads below / above, % |"
	for _, age := range scored {
		var s sums
		for _, c := range t.clients {
			if c != nil {
				x := c[age]
				s.n, s.inside, s.low, s.above = s.n+x.n, s.inside+x.inside, s.low+x.low, s.above+x.above
			}
		}
		line += fmt.Sprintf(" %.1f |", 100*s.inside/s.n)
		below += fmt.Sprintf(" %.1f / %.1f |", 100*s.low/s.n, 100*s.above/s.n)
	}
	fmt.Fprintln(w, line)
	fmt.Fprintln(w, below)
}
