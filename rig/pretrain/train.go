package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/feature"
)

// The settings of the model's training. They are the first values that were tried.
const (
	batchOrigins = 42 // origins in a batch, each with all its targets
	rate         = 0.004
	rateEnd      = 2e-5
	warmup       = 100
	// blind is the share of examples without weather and country.
	blind = 0.15
	// Each client's readings before validationFrom are for training, the next readings until
	// testFrom are for choosing settings, and the rest are for a single score.
	validationFrom, testFrom = 0.8, 0.9
	hours                    = 24
)

// ages are the numbers of days of readings that clients have in training. The largest numbers
// are at the end, and account for half of all examples.
var ages = []int{1, 3, 7, 21, 60}

// group is a group of clients to train on.
type group struct {
	data        *series.Dataset
	full, blind *recipe.Problem
}

func newGroup(d *series.Dataset, q *recipe.Problem) (g *group, err error) {
	g = &group{data: d}
	if g.full, err = serve.YoungProblem(q, d); err != nil {
		return nil, err
	}
	var meters []series.Meter
	for i := range d.Len() {
		meters = append(meters, d.Meter(i))
	}
	bare, err := series.NewDataset(series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, StaticNames: d.StaticNames}, meters)
	if err != nil {
		return nil, err
	}
	if g.blind, err = serve.YoungProblem(q, bare); err != nil {
		return nil, err
	}
	g.full.LimitCache(0) // no example is used twice
	g.blind.LimitCache(0)
	return g, nil
}

// cut returns the readings that a forecast after the step last may use if the client is the
// given number of days old. It adds the readings of the next steps, and returns the
// position of the step among them.
func cut(d *series.Dataset, m series.Meter, last, days, next int) (series.Meter, int) {
	cutoff := m.Start + int64(last+1)*d.Seconds()
	start := max(feature.Tail(cutoff, d.Seconds()), m.Start)
	x := m.Cut(start, cutoff+int64(next)*d.Seconds(), d.Seconds())
	at := int((cutoff-start)/d.Seconds()) - 1
	load := append([]float32(nil), x.Load...)
	for i := range at + 1 - min(days*hours, at+1) {
		load[i] = float32(math.NaN())
	}
	x.Load = load
	return x, at
}

// draw fills an origin's rows of x and y with a random example of the group.
func (g *group) draw(random *rand.Rand, x, y []float32, at []series.Example) {
	for {
		m := g.data.Meter(random.IntN(g.data.Len()))
		age := ages[len(ages)-1]
		if random.Float64() < 0.5 {
			age = ages[random.IntN(len(ages)-1)]
		}
		q := g.full
		if random.Float64() < blind {
			q = g.blind
		}
		end, begin := int(validationFrom*float64(len(m.Load)))-len(at), 8*hours
		if end <= begin {
			continue
		}
		last := begin + random.IntN(end-begin)
		if age > last/hours {
			continue
		}
		meter, at0 := cut(g.data, m, last, age, len(at))
		if !complete(meter.Load[at0+1-min(age*hours, 7*hours):]) {
			continue
		}
		examples, _ := serve.YoungExamples(q, meter, at0)
		if rows, ok := examples.(*feature.Rows); !ok || rows.Scaling().Deviation < 1e-3 {
			continue
		}
		for i := range at {
			at[i] = series.Example{Last: at0, Target: i}
		}
		examples.Gather(x, y, at)
		return
	}
}

// complete reports whether at most a tenth of the loads are missing, and none of the last two
// days'.
func complete(load []float32) bool {
	missing := 0
	for i, v := range load {
		if series.Missing(v) {
			if missing++; i >= len(load)-2*hours {
				return false
			}
		}
	}
	return 10*missing <= len(load)
}

// batch contains the inputs and the targets of examples.
type batch struct{ x, y []float32 }

// train trains the model on groups. The same groups, steps and seed give the same weights.
func train(log io.Writer, data []*series.Dataset, k *kernel.Set, steps int, seed uint64) ([]float32, error) {
	p, err := serve.GenericPlan()
	if err != nil {
		return nil, err
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		return nil, err
	}
	var groups []*group
	for _, d := range data {
		g, err := newGroup(d, q)
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	targets, width := p.Model.Targets.Steps(), len(q.InputNames())
	n := batchOrigins * targets
	// Each batch is prepared while the model trains on the previous one.
	full, empty := make(chan batch, 2), make(chan batch, 2)
	for range 2 {
		empty <- batch{make([]float32, n*width), make([]float32, n)}
	}
	go func() {
		random := rand.New(rand.NewPCG(seed, 1))
		at := make([]series.Example, targets)
		for range steps {
			b := <-empty
			for i := range batchOrigins {
				groups[i%len(groups)].draw(random, b.x[i*targets*width:][:targets*width], b.y[i*targets:][:targets], at)
			}
			full <- b
		}
	}()
	w := q.Model.InitialWeights(seed)
	shared, personal := make([]float32, q.Partition.SharedLen()), make([]float32, q.Partition.PersonalLen())
	q.Partition.Cut(w, shared, personal)
	clear(personal)
	q.Partition.Join(w, shared, personal)
	gradient, first, second := make([]float32, len(w)), make([]float32, len(w)), make([]float32, len(w))
	ws := q.Model.Net().NewWorkspace(k, n)
	sum := 0.0
	for step := range steps {
		b := <-full
		sum += ws.Gradient(gradient, w, b.x, b.y, q.Loss)
		empty <- b
		for _, l := range q.Partition.Personal() { // the correction remains 0
			clear(gradient[l.Offset() : l.Offset()+l.Len()])
		}
		r := rateEnd + (rate-rateEnd)*0.5*(1+math.Cos(math.Pi*float64(step)/float64(steps)))
		r *= min(1, float64(step+1)/warmup)
		k.Adam(w, gradient, first, second, kernel.AdamStep{Rate: r, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: step + 1})
		if every := max(steps/10, 1); (step+1)%every == 0 {
			fmt.Fprintf(log, "step %d of %d, loss %.4f\n", step+1, steps, sum/float64(every))
			sum = 0
		}
	}
	q.Partition.Cut(w, shared, personal)
	return shared, nil
}
