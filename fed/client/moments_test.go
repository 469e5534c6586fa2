package client

import (
	"math"
	"slices"
	"testing"

	"loadstar/fed"
	"loadstar/fed/round"
)

// reference is Adam in float64 on all of a client's examples.
type reference struct {
	m, v []float64
	k    int
}

func (r *reference) step(w, g []float32, c *fed.Client, only func(i int) bool) {
	r.k++
	for i := range w {
		if !only(i) {
			continue
		}
		x := float64(g[i])
		r.m[i] = c.Beta1*r.m[i] + (1-c.Beta1)*x
		r.v[i] = c.Beta2*r.v[i] + (1-c.Beta2)*x*x
		m, v := r.m[i]/(1-math.Pow(c.Beta1, float64(r.k))), r.v[i]/(1-math.Pow(c.Beta2, float64(r.k)))
		w[i] = float32(float64(w[i]) - c.Rate*m/(math.Sqrt(v)+c.Epsilon))
	}
}

// Averaged moments equal those of a reference that, after each round, replaces the moments of
// the shared weights, but not those of the personal weights, with their mean over the clients.
func TestAveragedMoments(t *testing.T) {
	const clients, rounds, steps = 3, 4, 2
	// A batch of all examples makes the steps independent of sampling.
	x := newFixture(t, "{algorithm: fedavg, model: {name: fekri2023, lookback: 4, targets: 2}, partition: head, "+
		"client: {batch: 4096, steps: 2, moments: averaged, epsilon: 1e-4}, server: {weighting: uniform}}", homes(t, clients))
	p, n := x.problem.Partition, len(x.initial)
	sharedAt := make([]bool, n)
	for _, s := range spans(p.Shared()) {
		for i := s.Lo; i < s.Hi; i++ {
			sharedAt[i] = true
		}
	}
	isShared, isPersonal := func(i int) bool { return sharedAt[i] }, func(i int) bool { return !sharedAt[i] }

	var all []*Client
	var start []float32
	whole, own := make([][]float32, clients), make([]reference, clients)
	for i := range clients {
		c, shared := x.client(i, x.initial)
		all, start = append(all, c), shared
		whole[i] = slices.Clone(x.initial)
		own[i] = reference{m: make([]float64, n), v: make([]float64, n)}
	}
	server := round.NewServer(x.parts.NewAggregator(), x.parts.NewOptimizer(), clients, start)
	fold := round.NewFold(round.Rules{Needs: x.parts.Needs, Scale: x.parts.Scale, Weight: x.parts.Weight})
	mean := reference{m: make([]float64, n), v: make([]float64, n)}
	g := make([]float32, n)
	for r := range rounds {
		for _, c := range all {
			u := x.train(t, c, server.Task(r))
			if err := fold.Add(&u, server.Shared()); err != nil {
				t.Fatal(err)
			}
		}
		if err := server.Merge(r, fold, nil); err != nil {
			t.Fatal(err)
		}
		fold.Reset()

		sums := [3][]float64{make([]float64, n), make([]float64, n), make([]float64, n)}
		for i, w := range whole {
			now := reference{m: slices.Clone(mean.m), v: slices.Clone(mean.v), k: r * steps}
			o := newObjective(x.job.Model, kernels(t), x.job.Loss, x.job.Targets, x.job.Batch)
			o.setData(x.data[i : i+1])
			examples := make([]int, o.Len())
			for e := range examples {
				examples[e] = e
			}
			for range steps {
				o.Gradient(g, w, examples)
				now.step(w, g, &x.plan.Client, isShared)
				own[i].step(w, g, &x.plan.Client, isPersonal)
			}
			for j := range w {
				sums[0][j] += float64(w[j]) / clients
				sums[1][j] += now.m[j] / clients
				sums[2][j] += now.v[j] / clients
			}
		}
		copy(mean.m, sums[1])
		copy(mean.v, sums[2])
		for _, w := range whole {
			for j := range w {
				if sharedAt[j] {
					w[j] = float32(sums[0][j])
				}
			}
		}
		want := make([]float32, p.SharedLen())
		p.Cut(whole[0], want, make([]float32, p.PersonalLen()))
		near(t, "weights", x.problem.SharedWeights(server.Shared()), want, 1e-5)
		for k, s := range sums[1:] {
			f := make([]float32, n)
			for j, v := range s {
				f[j] = float32(v)
			}
			p.Cut(f, want, make([]float32, p.PersonalLen()))
			near(t, []string{"m", "v"}[k], server.Shared()[(k+1)*len(want):(k+2)*len(want)], want, 1e-5)
		}
	}
	for i, c := range all {
		personal := make([]float32, p.PersonalLen())
		p.Cut(whole[i], make([]float32, p.SharedLen()), personal)
		near(t, "personal weights", c.Kept[:p.PersonalLen()], personal, 1e-5)
		if c.Kept[len(c.Kept)-1] != rounds*steps {
			t.Errorf("%v personal steps, want %d", c.Kept[len(c.Kept)-1], rounds*steps)
		}
	}
}

func near(t *testing.T, what string, got, want []float32, within float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i := range got {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= within) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}
