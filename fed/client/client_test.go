package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/synth"
)

// tester has the methods of *testing.T and *rapid.T that these tests use.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func kernels(t tester) *kernel.Set {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// homes returns synthetic meters of different lengths, with gaps.
func homes(t tester, n int) *series.Dataset {
	t.Helper()
	g, err := synth.New(synth.Config{Seed: 2, Meters: n, Days: 12, Zone: "UTC", Faults: synth.Faults{Gap: 0.01}})
	if err != nil {
		t.Fatal(err)
	}
	meters := make([]series.Meter, n)
	for i := range meters {
		load := make([]float32, g.Len())
		g.Building(i, load)
		meters[i] = series.Meter{ID: fmt.Sprint("home ", i), Start: g.Time(0).Unix(), Load: load[:len(load)-60*i]}
	}
	d, err := series.NewDataset(series.Dataset{Name: "homes", Generated: true, Interval: time.Hour, Clock: time.UTC}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fixture has a worker for a plan, and the data of the clients to train.
type fixture struct {
	plan    *fed.Plan
	problem *recipe.Problem
	parts   *recipe.Composition
	job     *Job
	worker  *Worker
	data    []series.Examples
	initial []float32 // shared and personal
}

func newFixture(t tester, plan string, d *series.Dataset) *fixture {
	t.Helper()
	p, err := recipe.Read([]byte(plan))
	if err != nil {
		t.Fatalf("%v\n%s", err, plan)
	}
	x := &fixture{plan: p}
	if x.problem, err = recipe.Frame(p, d); err != nil {
		t.Fatal(err)
	}
	if x.parts, err = recipe.Compose(p, 10); err != nil {
		t.Fatal(err)
	}
	x.job = &Job{
		Seed: p.Seed, Draws: fed.Seeded(p.Seed), Model: x.problem.Model, Partition: x.problem.Partition, Loss: x.problem.Loss,
		Targets: p.Model.Targets.Steps(), Batch: p.Client.Batch, Needs: x.parts.Needs,
		Averaged: recipe.Averaged(p), Own: recipe.StoresOwn(p), ScoreOwn: recipe.ScoresOwn(p),
	}
	if recipe.ClientStates(p) {
		x.job.Copy = &Copy{Rate: p.Server.Rate, Beta1: p.Server.Beta1, Epsilon: p.Server.Epsilon}
	}
	x.worker = NewWorker(x.job, kernels(t), x.parts.NewTrainer(kernels(t)))
	for i := range d.Len() {
		m := d.Meter(i)
		x.data = append(x.data, x.problem.Framer.Windows(m, x.problem.Framer.Ranges(m)))
	}
	x.initial = x.problem.Model.InitialWeights(1)
	return x
}

// small returns a plan that trains in milliseconds.
func small(algorithm, more string) string {
	steps := "client: {batch: 8, steps: 2"
	if algorithm == "fedsgd" {
		steps = "client: {batch: 8"
	}
	cohort := "schedule: {cohort: 5},"
	if algorithm == "local" || algorithm == "pooled" {
		cohort = ""
	}
	return fmt.Sprintf("{algorithm: %s, model: {name: fekri2023, lookback: 4, targets: 2}, %s}, %s %s}", algorithm, steps, cohort, more)
}

// client returns client i before its first training, with the personal weights in whole, and
// the shared weights in whole.
func (x *fixture) client(i int, whole []float32) (*Client, []float32) {
	p := x.problem.Partition
	c := &Client{ID: fed.ClientID(fmt.Sprint("home ", i)), Data: x.data[i : i+1], Kept: make([]float32, x.worker.Kept()), First: true}
	shared := make([]float32, x.problem.SharedLen())
	p.Cut(whole, x.problem.SharedWeights(shared), c.Kept[:p.PersonalLen()])
	return c, shared
}

// task returns a task of the given round with the given shared weights, as version 0.
func (x *fixture) task(round int, shared []float32) fed.Task {
	t := fed.Task{Round: round, Shared: shared}
	if x.job.Needs.Control {
		t.Control = make([]float32, len(shared))
	}
	return t
}

func (x *fixture) train(t tester, c *Client, task fed.Task) fed.Update {
	t.Helper()
	var u fed.Update
	if err := x.worker.Train(context.Background(), c, task, &u); err != nil {
		t.Fatal(err)
	}
	return u
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// The spans are the positions to which Join writes the shared weights and from which Cut
// reads them, in the same order.
func TestSpans(t *testing.T) {
	for _, model := range forecast.Models() {
		m, err := forecast.New(model.Name, forecast.Shape{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range m.Net().Layers() {
			names = append(names, l.Name)
		}
		rapid.Check(t, func(t *rapid.T) {
			list := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, -1, rapid.ID).Filter(func(list []string) bool {
				return !slices.Equal(list, []string{forecast.PartitionHead}) // a list of layers, not the name of a partition
			}).Draw(t, "personal")
			p, err := m.Partition(strings.Join(list, ","))
			if err != nil {
				t.Fatal(err)
			}
			w := make([]float32, m.Net().Weights())
			for i := range w {
				w[i] = float32(i)
			}
			shared, personal := make([]float32, p.SharedLen()), make([]float32, p.PersonalLen())
			p.Cut(w, shared, personal)
			var want []float32
			end := -1
			for _, s := range spans(p.Shared()) {
				if s.Lo <= end || s.Hi <= s.Lo {
					t.Fatalf("%s: spans %v", list, spans(p.Shared()))
				}
				end = s.Hi
				want = append(want, w[s.Lo:s.Hi]...)
			}
			if !slices.Equal(shared, want) {
				t.Fatalf("%s: shared weights are not in the spans %v", list, spans(p.Shared()))
			}
			back := make([]float32, len(w))
			p.Join(back, shared, personal)
			if !slices.Equal(back, w) {
				t.Fatalf("%s: joined weights differ", list)
			}
		})
	}
}

// A pooled objective has the examples of all its series, in order.
func TestPooledObjective(t *testing.T) {
	x := newFixture(t, small("fedavg", ""), homes(t, 4))
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.SampledFrom(x.data), 1, 5).Draw(t, "series")
		pooled := newFixture(t, small("fedavg", ""), homes(t, 1)).worker.objective
		pooled.setData(data)
		type place struct{ of, example int }
		var all []place
		for i, w := range data {
			for e := range w.Len(series.Train) {
				all = append(all, place{i, e})
			}
		}
		if pooled.Len() != len(all) {
			t.Fatalf("%d examples, want %d", pooled.Len(), len(all))
		}
		examples := rapid.SliceOfN(rapid.IntRange(0, len(all)-1), 1, 8).Draw(t, "examples")
		examples[0] = rapid.SampledFrom([]int{0, data[0].Len(series.Train) - 1, len(all) - 1, examples[0]}).Draw(t, "edge")
		targets := pooled.gather(examples)
		inputs, stride := pooled.ws.Columns(len(examples))
		wantX, wantY := make([]float32, len(inputs)/stride), make([]float32, pooled.targets)
		for i, e := range examples {
			at := all[e]
			from := data[at.of]
			from.Gather(wantX, wantY, []series.Example{{Last: from.At(series.Train, at.example)}})
			for r, want := range wantX {
				if inputs[r*stride+i] != want {
					t.Fatalf("input %d of example %d is not that of example %d of series %d", r, e, at.example, at.of)
				}
			}
			if !slices.Equal(targets[i*pooled.targets:(i+1)*pooled.targets], wantY) {
				t.Fatalf("the targets of example %d are not those of example %d of series %d", e, at.example, at.of)
			}
		}
	})
}

// The loss over all examples is the mean of the losses of the individual examples, no
// matter how they are split into batches.
func TestLossOverAll(t *testing.T) {
	x := newFixture(t, small("fednorm", "seed: 1"), homes(t, 2))
	c, shared := x.client(0, x.initial)
	o := x.worker.objective
	o.setData(c.Data)
	sum := 0.0
	for e := range o.Len() {
		sum += o.Loss(x.initial, []int{e})
	}
	want := sum / float64(o.Len())
	if o.Len()%o.batch == 0 {
		t.Fatal("the test needs a smaller last batch")
	}
	u := x.train(t, c, x.task(0, shared))
	if math.Abs(u.Loss-want) > 1e-6*want || u.Loss == 0 {
		t.Errorf("loss %v, want %v", u.Loss, want)
	}
	// The same worker then trains a client with fewer examples.
	less, shared := x.client(1, x.initial)
	fresh := newFixture(t, small("fednorm", "seed: 1"), homes(t, 2))
	other, _ := fresh.client(1, x.initial)
	if a, b := x.train(t, less, x.task(0, shared)), fresh.train(t, other, x.task(0, shared)); a.Loss != b.Loss || a.Examples >= u.Examples {
		t.Errorf("losses %v and %v over %d examples", a.Loss, b.Loss, a.Examples)
	}
	// The loss is computed only if the aggregator needs it.
	plain := newFixture(t, small("fedavg", "seed: 1"), homes(t, 1))
	c, shared = plain.client(0, plain.initial)
	if u := plain.train(t, c, plain.task(0, shared)); u.Loss != 0 {
		t.Errorf("loss %v in a plan that does not need it, want 0", u.Loss)
	}
}

// Tasks come from the network, so a task that does not fit the plan is an error.
func TestTaskDoesNotFit(t *testing.T) {
	d := homes(t, 1)
	for _, algorithm := range []string{"fedavg", "scaffold"} {
		x := newFixture(t, small(algorithm, "partition: head"), d)
		n := x.problem.Partition.SharedLen()
		for name, c := range map[string]struct {
			spoil func(*fed.Task, *Client)
			want  string
		}{
			"no weights":       {func(t *fed.Task, _ *Client) { t.Shared = nil }, "the task has 0 weights"},
			"one less":         {func(t *fed.Task, _ *Client) { t.Shared = t.Shared[1:] }, fmt.Sprintf("the task has %d weights, want %d", n-1, n)},
			"personal as well": {func(t *fed.Task, _ *Client) { t.Shared = make([]float32, len(x.initial)) }, "as in the plan"},
			"control":          {func(t *fed.Task, _ *Client) { t.Control = make([]float32, 3) }, "the task has 3 control variates"},
			"control or none": {func(t *fed.Task, _ *Client) {
				if t.Control == nil {
					t.Control = make([]float32, n)
				} else {
					t.Control = nil
				}
			}, "control variates, want"},
			"kept": {func(_ *fed.Task, c *Client) { c.Kept = c.Kept[1:] }, "the stored state has"},
		} {
			client, shared := x.client(0, x.initial)
			task := x.task(0, shared)
			c.spoil(&task, client)
			before := slices.Clone(client.Kept)
			err := x.worker.Train(t.Context(), client, task, &fed.Update{})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "client home 0") {
				t.Errorf("%s, %s: %v", algorithm, name, err)
			}
			if !client.First || !slices.Equal(client.Kept, before) {
				t.Errorf("%s, %s: the client's state changed", algorithm, name)
			}
		}
	}
}

// Interrupted training leaves the client unchanged and the worker usable.
func TestInterruptedTurn(t *testing.T) {
	x := newFixture(t, small("scaffold", "partition: head"), homes(t, 1))
	c, shared := x.client(0, x.initial)
	before := slices.Clone(c.Kept)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.worker.Train(ctx, c, x.task(0, shared), &fed.Update{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if !c.First || !slices.Equal(c.Kept, before) {
		t.Error("the client's state changed")
	}
	got := x.train(t, c, x.task(0, shared))
	fresh := newFixture(t, small("scaffold", "partition: head"), homes(t, 1))
	c, shared = fresh.client(0, fresh.initial)
	if want := fresh.train(t, c, fresh.task(0, shared)); !sameBits(got.Delta, want.Delta) || !sameBits(got.Control, want.Control) {
		t.Error("the interrupted turn affected the next one")
	}
}

// The random numbers of a turn depend only on its round and client, not on earlier turns.
func TestTurnsAreIndependent(t *testing.T) {
	d := homes(t, 2)
	for _, algorithm := range recipe.Names() {
		x := newFixture(t, small(algorithm, "seed: 4"), d)
		c, shared := x.client(0, x.initial)
		want := x.train(t, c, x.task(3, shared))
		other, _ := x.client(1, x.initial)
		x.train(t, other, x.task(3, shared))
		c, _ = x.client(0, x.initial)
		if got := x.train(t, c, x.task(3, shared)); !sameBits(got.Delta, want.Delta) || got.TrainLoss != want.TrainLoss || got.Steps != want.Steps {
			t.Errorf("%s: another turn in between makes a difference", algorithm)
		}
		if got := x.train(t, other, x.task(4, shared)); got.Client != "home 1" || got.Examples != x.data[1].Len(series.Train) {
			t.Errorf("%s: %v %v", algorithm, got.Client, got.Examples)
		}
	}
}

// ServerData returns the gradient on its batch at any shared weights, using personal
// weights that it trains itself. It can continue from saved state.
func TestServerData(t *testing.T) {
	text := small("fedsim", "partition: head, server: {batch: 20}")
	d := homes(t, 3)
	x := newFixture(t, text, d)
	_, shared := x.client(0, x.initial)
	p := x.problem.Partition
	personal := make([]float32, p.PersonalLen())
	p.Cut(x.initial, make([]float32, p.SharedLen()), personal)
	start := func() *ServerData {
		s, err := NewServerData(x.job, kernels(t), x.parts.NewTrainer(kernels(t)), x.data, personal, 20)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	gradient := func(s *ServerData, round int) []float32 {
		t.Helper()
		if err := s.Begin(t.Context(), x.task(round, shared)); err != nil {
			t.Fatal(err)
		}
		g := make([]float32, p.SharedLen())
		if err := s.Gradient(g, shared); err != nil {
			t.Fatal(err)
		}
		again := make([]float32, p.SharedLen())
		if err := s.Gradient(again, shared); err != nil || !sameBits(g, again) {
			t.Fatal("the batch changes within a round", err)
		}
		return g
	}
	steady := start()
	first := gradient(steady, 0)
	if slices.Equal(steady.Kept(), personal) {
		t.Error("the server's personal layers did not train")
	}
	resumed := start()
	if err := resumed.Restore(steady.Kept()); err != nil {
		t.Fatal(err)
	}
	want := gradient(steady, 1)
	if sameBits(first, want) {
		t.Error("every round has the same batch")
	}
	if got := gradient(resumed, 1); !sameBits(got, want) {
		t.Error("the restored server data differs")
	}
	// Compute the expected gradient directly: the gradient of all weights on the batch, with the
	// server's personal weights.
	w, g := make([]float32, len(x.initial)), make([]float32, len(x.initial))
	p.Join(w, shared, steady.Kept()[:p.PersonalLen()])
	o := newObjective(x.job.Model, kernels(t), x.job.Loss, x.job.Targets, 20)
	o.setData(x.data)
	o.Gradient(g, w, steady.batch)
	hand := make([]float32, p.SharedLen())
	p.Cut(g, hand, make([]float32, p.PersonalLen()))
	if !sameBits(hand, want) || len(steady.batch) != 20 {
		t.Error("the gradient differs from the one computed by hand")
	}
	if err := resumed.Restore(make([]float32, 3)); err == nil || !strings.Contains(err.Error(), "saved state has 3 numbers") {
		t.Error(err)
	}
}
