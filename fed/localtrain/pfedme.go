package localtrain

import (
	"context"
	"fmt"

	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.LocalTrainer = (*PFedMe)(nil)

// PFedMe is pFedMe's client (T. Dinh et al. 2020, algorithm 1; song2021, section
// 4.1). A personal model θ is near the shared one, and the shared one follows it: with
// each batch, InnerSteps times
//
//	θ -= Inner · (∇f(θ; batch) + Lambda·(θ - w))
//
// and then, of the gradient of the Moreau envelope of f,
//
//	w = Optimizer(w, Lambda·(w - θ))
//
// θ starts a round as w, and goes on from batch to batch. Personal weights belong to θ
// alone: they take the inner steps, untied, and their gradient in the outer one is
// zero. What the server does with the clients' w is its own affair: the paper's β is
// its learning rate.
//
// Deviations: the paper's outer step is SGD, and here any optimizer's. It leaves open
// where θ starts; going on from batch to batch is what its authors' code does. That
// code decays weights, which is not in the paper, nor here. θ is not kept after the
// round: a client that is to be scored tunes its weights anew.
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

// Kept is that of Optimizer.
func (d *PFedMe) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train does the work. Inner steps count.
func (d *PFedMe) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	if d.InnerSteps < 1 {
		return fed.Trained{}, fmt.Errorf("localtrain: pFedMe with %d inner steps; want 1 or more", d.InnerSteps)
	}
	if err := d.batches.begin(d.Work, o.Len(), t.Rand); err != nil {
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
			d.tie(t.Shared, d.theta, t.W)
			d.Kernel.Axpy(d.theta, d.g, float32(-d.Inner))
		}
		clear(d.g)
		d.tie(t.Shared, t.W, d.theta)
		d.Optimizer.Step(t.W, d.g)
	}
	d.keepPersonal(t)
	return done.end(d.Optimizer, t)
}

// tie adds Lambda·(w - to) to the shared part of the gradient.
func (d *PFedMe) tie(shared []fed.Span, w, to []float32) {
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
