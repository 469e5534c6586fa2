package localtrain

import (
	"context"

	"loadstar/fed"
)

var _ fed.LocalTrainer = (*Descent)(nil)

// Descent takes one step of Optimizer per batch. It is the client of FedAvg and, with
// other optimizers, of FedProx, SCAFFOLD, FedSIM and most other algorithms (reddi2021,
// algorithm 1, lines 4 to 8):
//
//	w = Optimizer(w, ∇f(w; batch))
//
// It is also the client of Fed-Reptile (Jiang et al. 2019; Nichol et al. 2018). In
// Fed-Reptile the client trains in the same way, and the server takes the step θ +=
// ε·mean(w - θ), with ε as its learning rate.
//
// Deviations: none.
type Descent struct {
	Work      Work
	Optimizer fed.ClientOptimizer
	// Earlier is the work in the rounds that led to the received weights, or nil if this work is
	// the same as Work.
	Earlier *Work

	batches batches
	g       []float32
}

// Kept returns the number of floats that Optimizer stores.
func (d *Descent) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train implements [fed.LocalTrainer].
func (d *Descent) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	if err := d.batches.begin(d.Work, o.Len(), t); err != nil {
		return fed.Trained{}, err
	}
	d.g = sized(d.g, len(t.W))
	if d.Earlier != nil {
		t.Done = earlier(t, d.Earlier.steps(o.Len()))
	}
	d.Optimizer.Begin(t)
	var done tally
	for batch := d.batches.next(); batch != nil; batch = d.batches.next() {
		if err := done.gradient(ctx, o, d.g, t.W, batch); err != nil {
			return fed.Trained{}, err
		}
		d.Optimizer.Step(t.W, d.g)
		if t.Half != nil && done.steps == (t.Steps+1)/2 {
			copy(t.Half, t.W)
		}
	}
	return done.end(d.Optimizer, t)
}
