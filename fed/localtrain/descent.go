package localtrain

import (
	"context"

	"loadstar/fed"
)

var _ fed.LocalTrainer = (*Descent)(nil)

// Descent steps Optimizer on batch after batch: the client of FedAvg, and with other
// optimizers of FedProx, SCAFFOLD, FedSIM and nearly all the rest (reddi2021,
// algorithm 1, lines 4 to 8):
//
//	w = Optimizer(w, ∇f(w; batch))
//
// It is also Fed-Reptile's (Jiang et al. 2019; Nichol et al. 2018): there, too, the
// client trains on its own, and the step θ += ε·mean(w - θ) by a share of the way is
// the server's, whose learning rate is ε.
//
// Deviations: none.
type Descent struct {
	Work      Work
	Optimizer fed.ClientOptimizer

	batches batches
	g       []float32
}

// Kept is that of Optimizer.
func (d *Descent) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train does the work.
func (d *Descent) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	if err := d.batches.begin(d.Work, o.Len(), t.Rand); err != nil {
		return fed.Trained{}, err
	}
	d.g = sized(d.g, len(t.W))
	d.Optimizer.Begin(t)
	var done tally
	for batch := d.batches.next(); batch != nil; batch = d.batches.next() {
		if err := done.gradient(ctx, o, d.g, t.W, batch); err != nil {
			return fed.Trained{}, err
		}
		d.Optimizer.Step(t.W, d.g)
	}
	return done.end(d.Optimizer, t)
}
