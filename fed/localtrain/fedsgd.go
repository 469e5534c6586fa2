package localtrain

import (
	"context"
	"fmt"

	"loadstar/fed"
)

var _ fed.LocalTrainer = (*Gradient)(nil)

// Gradient is FedSGD's client (McMahan et al. 2017, section 2): one gradient over all
// of its n examples, for the server to step on.
//
//	shared = received - ∇f(w),  ∇f(w) = Σ_batch |batch|/n · ∇f(w; batch)
//
// so that the change of the shared weights is the gradient with its sign turned.
// Sums are in float64. Personal weights take one step of Optimizer on the same
// gradient.
//
// Deviations: the gradient travels as a change of weights, so that it is rounded to
// what a float32 of the weight's size resolves.
type Gradient struct {
	Batch     int // how many examples are taken at a time
	Optimizer fed.ClientOptimizer

	batch []int
	g     []float32
	sum   []float64
}

// Kept is that of Optimizer.
func (d *Gradient) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train takes the gradient. The loss that it reports is the mean over all examples.
func (d *Gradient) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	n := o.Len()
	if n < 1 {
		return fed.Trained{}, errNoExamples
	}
	if d.Batch < 1 {
		return fed.Trained{}, fmt.Errorf("localtrain: batches of %d examples; want 1 or more", d.Batch)
	}
	d.g = sized(d.g, len(t.W))
	if cap(d.sum) < len(t.W) {
		d.sum = make([]float64, len(t.W))
	}
	d.sum = d.sum[:len(t.W)]
	clear(d.sum)
	d.Optimizer.Begin(t)
	var done tally
	loss := 0.0
	for lo := 0; lo < n; lo += d.Batch {
		d.batch = fill(d.batch, lo, min(lo+d.Batch, n))
		if err := done.gradient(ctx, o, d.g, t.W, d.batch); err != nil {
			return fed.Trained{}, err
		}
		size := float64(len(d.batch))
		loss += size * done.last
		for i, g := range d.g {
			d.sum[i] += size * float64(g)
		}
	}
	for i := range d.sum {
		d.sum[i] /= float64(n)
		d.g[i] = float32(d.sum[i])
	}
	d.Optimizer.Step(t.W, d.g)
	received := t.Task.Shared
	for _, s := range t.Shared {
		w, sum := t.W[s.Lo:s.Hi], d.sum[s.Lo:s.Hi]
		for i := range w {
			w[i] = float32(float64(received[i]) - sum[i])
		}
		received = received[len(w):]
	}
	trained, err := done.end(d.Optimizer, t)
	if err != nil {
		return fed.Trained{}, err
	}
	trained.Loss = loss / float64(n)
	return trained, nil
}
