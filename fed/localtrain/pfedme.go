package localtrain

import (
	"context"
	"fmt"

	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.LocalTrainer = (*PFedMe)(nil)

// PFedMe is pFedMe's client (T. Dinh et al. 2020, algorithm 1; song2021, section 4.1). It
// trains a personal model θ near the shared model w, and moves w towards θ. For each batch, it
// repeats InnerSteps times
//
//	θ -= Inner · (∇f(θ; batch) + Lambda·(θ - w))
//
// and then takes a step along the gradient of the Moreau envelope of f,
//
//	w = Optimizer(w, Lambda·(w - θ))
//
// θ equals w at the start of a round and carries over from batch to batch. Personal
// weights exist only in θ: they take the inner steps without the Lambda term, and their
// gradient in the outer step is zero. The paper's β is the learning rate of the server
// optimizer.
//
// Deviations: the paper's outer step is SGD; here it can be any optimizer, such as Adam, with
// which song2021 trains all its methods (table 5; client.optimizer: adam). The paper does not
// say where θ starts; like its authors' code, we carry θ over from batch to batch. The authors'
// code also applies weight decay, which neither the paper nor this trainer does. θ is not
// stored after the round, so a client must fine-tune the shared weights again before it is
// scored.
type PFedMe struct {
	Work       Work
	Kernel     *kernel.Set
	Lambda     float64
	Inner      float64
	InnerSteps int
	Optimizer  fed.ClientOptimizer

	batches  batches
	g, theta []float32
}

// Kept returns the number of floats that Optimizer stores.
func (d *PFedMe) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train implements [fed.LocalTrainer]. It counts the gradients of the inner steps.
func (d *PFedMe) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	if d.InnerSteps < 1 {
		return fed.Trained{}, fmt.Errorf("localtrain: pFedMe has %d inner steps, want at least 1", d.InnerSteps)
	}
	if err := d.batches.begin(d.Work, o.Len(), t); err != nil {
		return fed.Trained{}, err
	}
	d.g, d.theta = sized(d.g, len(t.W)), sized(d.theta, len(t.W))
	copy(d.theta, t.W)
	d.Optimizer.Begin(t)
	var done tally
	for batch := d.batches.next(); batch != nil; batch = d.batches.next() {
		for range d.InnerSteps {
			if err := done.gradient(ctx, o, d.g, d.theta, batch); err != nil {
				return fed.Trained{}, err
			}
			d.addPull(t.Shared, d.theta, t.W)
			d.Kernel.Axpy(d.theta, d.g, float32(-d.Inner))
		}
		clear(d.g)
		d.addPull(t.Shared, t.W, d.theta)
		d.Optimizer.Step(t.W, d.g)
	}
	d.keepPersonal(t)
	return done.end(d.Optimizer, t)
}

// addPull adds Lambda·(w - to) to the gradient of the shared weights.
func (d *PFedMe) addPull(shared []fed.Span, w, to []float32) {
	for _, s := range shared {
		d.Kernel.Proximal(d.g[s.Lo:s.Hi], w[s.Lo:s.Hi], to[s.Lo:s.Hi], float32(d.Lambda))
	}
}

// keepPersonal copies the personal weights of θ to t.W.
func (d *PFedMe) keepPersonal(t *fed.Turn) {
	for _, s := range t.Shared {
		copy(d.theta[s.Lo:s.Hi], t.W[s.Lo:s.Hi])
	}
	copy(t.W, d.theta)
}
