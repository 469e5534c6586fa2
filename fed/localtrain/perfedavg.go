package localtrain

import (
	"context"

	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.LocalTrainer = (*PerFedAvg)(nil)

// PerFedAvg is first-order Per-FedAvg (Fallah et al. 2020, algorithm 1 and section 5, "FO";
// song2021, section 4.1). It trains weights that have a low loss after one further step. Each
// gradient is computed after a look-ahead step, on a different batch from that of the
// look-ahead step.
//
//	w' = w - Inner · ∇f(w; support)
//	w = Optimizer(w, ∇f(w'; query))
//
// The query batches are those of Work. A support batch is sampled from all examples for
// each query batch, or once per round if Work uses one batch per round. Personal weights
// take the look-ahead step and the outer step together with the shared weights.
//
// Deviations: the paper's outer step is SGD with rate β; here it can be any optimizer. By
// default, as in the paper, both batches are sampled from all examples and may overlap.
// song2021 reserves a fifth of a client's examples for queries. If Query divides the examples
// in this way, the batches of Work are support batches, and a query batch is sampled for each
// of them.
type PerFedAvg struct {
	Work      Work
	Kernel    *kernel.Set
	Inner     float64
	Optimizer fed.ClientOptimizer
	// Query divides the examples into those for the look-ahead step and those for the gradient
	// after it.
	Query Query

	pairs    pairs
	g, ahead []float32
}

// Kept returns the number of floats that Optimizer stores.
func (d *PerFedAvg) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train implements [fed.LocalTrainer]. It counts both gradients of each step.
func (d *PerFedAvg) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	if err := d.pairs.begin(d.Work, d.Query, o.Len(), t); err != nil {
		return fed.Trained{}, err
	}
	d.g, d.ahead = sized(d.g, len(t.W)), sized(d.ahead, len(t.W))
	d.Optimizer.Begin(t)
	var done tally
	for support, query := d.pairs.next(); query != nil; support, query = d.pairs.next() {
		if err := done.gradient(ctx, o, d.g, t.W, support); err != nil {
			return fed.Trained{}, err
		}
		copy(d.ahead, t.W)
		d.Kernel.Axpy(d.ahead, d.g, float32(-d.Inner))
		if err := done.gradient(ctx, o, d.g, d.ahead, query); err != nil {
			return fed.Trained{}, err
		}
		d.Optimizer.Step(t.W, d.g)
	}
	return done.end(d.Optimizer, t)
}
