package localtrain

import (
	"context"
	"fmt"

	"loadstar/fed"
)

var _ fed.LocalTrainer = (*Gradient)(nil)

// Gradient is FedSGD's client (McMahan et al. 2017, section 2). It computes one gradient over
// all n examples, and the server takes a step against it:
//
//	shared = received - ∇f(w),  ∇f(w) = Σ_batch |batch|/n · ∇f(w; batch)
//
// so the change of the shared weights is the negative gradient. Sums are in float64.
// Personal weights take one step of Optimizer on the same gradient.
//
// Deviations: the gradient is sent as a change of weights, so it is rounded to the
// float32 resolution at the weight's magnitude.
type Gradient struct {
	Batch     int // number of examples per gradient call; affects memory and rounding only
	Optimizer fed.ClientOptimizer

	batch []int
	g     []float32
	sum   []float64
}

// Kept returns the number of floats that Optimizer stores.
func (d *Gradient) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train implements [fed.LocalTrainer]. The reported loss is the mean over all examples.
func (d *Gradient) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	n := o.Len()
	if n < 1 {
		return fed.Trained{}, errNoExamples
	}
	if d.Batch < 1 {
		return fed.Trained{}, fmt.Errorf("localtrain: the batch size is %d, want at least 1", d.Batch)
	}
	d.g = sized(d.g, len(t.W))
	if cap(d.sum) < len(t.W) {
		d.sum = make([]float64, len(t.W))
	}
	d.sum = d.sum[:len(t.W)]
	clear(d.sum)
	t.Steps, t.Done = 1, t.Task.Version
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
