package localtrain

import (
	"slices"
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

func TestPerFedAvg(t *testing.T) {
	d := &PerFedAvg{Work: Work{Batch: 2, Steps: 2}, Kernel: kernels(t), Inner: 0.5, Optimizer: sgd(t, 0.5)}
	// All targets are 2, so the gradient is w - 2.
	//   w = 0:    ahead 0 + 2/2 = 1,         gradient -1,    w = 0.5
	//   w = 0.5:  ahead 0.5 + 1.5/2 = 1.25,  gradient -0.75, w = 0.875
	// Losses: 2, 0.5, 1.125, 0.28125; their mean is 0.9765625. The weight between the
	// shared ones is personal and is trained in the same way.
	tr := turn(d, []float32{0, 0, 0}, ends...)
	got := train(t, d, same(3, 2, 2, 2), tr)
	check(t, "weights", tr.W, 0.875, 0.875, 0.875)
	if want := (fed.Trained{Steps: 4, Loss: 3 * 0.9765625}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The look-ahead step uses one batch, and the gradient after it uses another.
func TestSupportAndQuery(t *testing.T) {
	k := kernels(t)
	for _, c := range []struct {
		name    string
		trainer func(Work) fed.LocalTrainer
		each    int // gradients per step: support, query, then support again
	}{
		{"perfedavg", func(w Work) fed.LocalTrainer {
			return &PerFedAvg{Work: w, Kernel: k, Inner: 0.1, Optimizer: sgd(t, 0.1)}
		}, 2},
		{"fedmeta", func(w Work) fed.LocalTrainer {
			return &FedMeta{Work: w, Kernel: k, Inner: 0.1, Delta: 0.1, Optimizer: sgd(t, 0.1)}
		}, 4},
	} {
		for _, w := range []Work{{Batch: 4, Steps: 3}, {Batch: 4, Steps: 3, ResampleRound: true}, {Batch: 5, Epochs: 1}} {
			b := same(1, make([]float32, 14)...)
			b.record = true
			l := c.trainer(w)
			train(t, l, b, turn(l, []float32{1}, fed.Span{Lo: 0, Hi: 1}))
			var supports, queries [][]int
			for step := range slices.Chunk(b.batches, c.each) {
				supports, queries = append(supports, step[0]), append(queries, step[1])
				for _, x := range step[2:] {
					if !slices.Equal(x, step[0]) {
						t.Errorf("%s: Hessian on %v, support on %v", c.name, x, step[0])
					}
				}
			}
			if len(supports) != 3 || slices.Equal(supports[0], queries[0]) {
				t.Errorf("%s %+v: supports %v, queries %v", c.name, w, supports, queries)
			}
			if again := slices.Equal(supports[0], supports[1]); again != w.ResampleRound {
				t.Errorf("%s %+v: supports %v", c.name, w, supports)
			}
			if again := slices.Equal(queries[0], queries[1]); again != w.ResampleRound {
				t.Errorf("%s %+v: queries %v", c.name, w, queries)
			}
			if all := slices.Sorted(slices.Values(slices.Concat(queries...))); w.Epochs > 0 && len(slices.Compact(all)) != 14 {
				t.Errorf("%s: an epoch queries %v", c.name, queries)
			}
		}
	}
}

// With an inner rate of 0, PerFedAvg is plain descent on the query batches.
func TestPerFedAvgWithoutInnerIsDescent(t *testing.T) {
	k := kernels(t)
	rapid.Check(t, func(rt *rapid.T) {
		b := same(2, rapid.SliceOfN(rapid.Float32Range(-10, 10), 1, 9).Draw(rt, "targets")...)
		// With all examples in each batch, or with one epoch, sampling support batches
		// does not affect the query batches.
		work := Work{Batch: 9, Steps: 3}
		if rapid.Bool().Draw(rt, "epoch") {
			work = Work{Batch: 2, Epochs: 1}
		}
		plain := &Descent{Work: work, Optimizer: sgd(t, 0.1)}
		meta := &PerFedAvg{Work: work, Kernel: k, Optimizer: sgd(t, 0.1)}
		w := []float32{rapid.Float32Range(-10, 10).Draw(rt, "weight"), 1}
		want, got := turn(plain, w, fed.Span{Lo: 0, Hi: 1}), turn(meta, w, fed.Span{Lo: 0, Hi: 1})
		train(t, plain, b, want)
		train(t, meta, b, got)
		if !sameBits(got.W, want.W) {
			rt.Fatalf("%v, want %v", got.W, want.W)
		}
	})
}
