package localtrain

import (
	"slices"
	"testing"

	"loadstar/fed"
	"loadstar/nn/kernel"
)

// meta returns the trainers that divide examples, by name.
func meta(t testing.TB, k *kernel.Set, w Work, q Query) map[string]fed.LocalTrainer {
	return map[string]fed.LocalTrainer{
		"perfedavg": &PerFedAvg{Work: w, Kernel: k, Inner: 0.1, Optimizer: sgd(t, 0.1), Query: q},
		"fedmeta":   &FedMeta{Work: w, Kernel: k, Inner: 0.1, Delta: 0.1, Optimizer: sgd(t, 0.1), Query: q},
	}
}

// TestDividedExamples checks which examples each gradient uses if a share of the examples forms
// the query set. The two sets must be disjoint, the same in every turn, and complete.
func TestDividedExamples(t *testing.T) {
	const n = 20
	each := map[string]int{"perfedavg": 2, "fedmeta": 4}
	q := Query{Share: 0.2}
	for _, w := range []Work{{Batch: 3, Steps: 9}, {Batch: 3, Steps: 5, ResampleRound: true}, {Batch: 3, Epochs: 2}, {Batch: 64, Steps: 2}} {
		for name, l := range meta(t, kernels(t), w, q) {
			b := same(1, make([]float32, n)...)
			b.record = true
			for i := range 30 {
				tr := turn(l, []float32{1}, fed.Span{Lo: 0, Hi: 1})
				tr.Rand, tr.Division = draws(uint64(i)), draws(7)
				train(t, l, b, tr)
			}
			var support, query []int
			steps := 0
			for step := range slices.Chunk(b.batches, each[name]) {
				steps++
				support, query = append(support, step[0]...), append(query, step[1]...)
				for _, x := range step[2:] {
					if !slices.Equal(x, step[0]) {
						t.Errorf("%s: Hessian on %v, support on %v", name, x, step[0])
					}
				}
			}
			want := 30 * w.Steps
			if w.Epochs > 0 {
				want = 30 * w.Epochs * 6 // 16 examples in batches of 3
				for e := range slices.Chunk(support, q.Support(n)) {
					if slices.Sort(e); len(slices.Compact(e)) != 16 {
						t.Fatalf("%s: a pass over the support set has the examples %v", name, e)
					}
				}
			}
			if steps != want {
				t.Errorf("%s %+v: %d steps, want %d", name, w, steps, want)
			}
			slices.Sort(support)
			slices.Sort(query)
			support, query = slices.Compact(support), slices.Compact(query)
			if !w.ResampleRound && (len(support) != 16 || len(query) != 4) {
				t.Errorf("%s %+v: %d examples of support and %d of queries, want 16 and 4", name, w, len(support), len(query))
			}
			for _, x := range query {
				if slices.Contains(support, x) {
					t.Errorf("%s %+v: example %d is in both sets", name, w, x)
				}
			}
			if query[len(query)-1]-query[0] == 3 {
				t.Errorf("%s: the query set %v is one stretch of time", name, query)
			}
		}
	}
}

// TestDividedSizes checks the sizes of the two sets, including those of clients with few
// examples.
func TestDividedSizes(t *testing.T) {
	for _, c := range []struct {
		share      float64
		n, support int
	}{{0, 10, 10}, {0.2, 10, 8}, {0.2, 1, 1}, {0.2, 2, 1}, {0.01, 10, 9}, {0.99, 10, 1}, {0.2, 13, 10}} {
		if got := (Query{Share: c.share}).Support(c.n); got != c.support {
			t.Errorf("share %v of %d: %d examples of support, want %d", c.share, c.n, got, c.support)
		}
	}
	// One example serves both steps.
	d := &PerFedAvg{Work: Work{Batch: 2, Steps: 1}, Kernel: kernels(t), Inner: 0.5, Optimizer: sgd(t, 0.5), Query: Query{Share: 0.2}}
	tr := turn(d, []float32{0}, fed.Span{Lo: 0, Hi: 1})
	train(t, d, same(1, 2), tr)
	check(t, "weights", tr.W, 0.5) // ahead 1, gradient -1
}

// TestDividedNumbers checks a step by hand. The targets are 3 in the query set and 1 in the
// support set, so each of a step's two gradients shows the set from which it comes.
func TestDividedNumbers(t *testing.T) {
	const n = 10
	d := &PerFedAvg{Work: Work{Batch: 16, Steps: 2}, Kernel: kernels(t), Inner: 0.5, Optimizer: sgd(t, 0.25), Query: Query{Share: 0.3}}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	draws(2).Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	b := same(1, slices.Repeat([]float32{1}, n)...)
	for _, e := range order[7:] {
		b.targets[e][0] = 3
	}
	// The gradient is w minus the target.
	//   w = 0:    ahead 0 + 1/2 = 0.5,               gradient -2.5,    w = 0.625
	//   w = 0.625: ahead 0.625 + 0.375/2 = 0.8125,   gradient -2.1875, w = 1.171875
	tr := turn(d, []float32{0}, fed.Span{Lo: 0, Hi: 1})
	tr.Division = draws(2)
	train(t, d, b, tr)
	check(t, "weights", tr.W, 1.171875)
}
