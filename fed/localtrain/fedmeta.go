package localtrain

import (
	"context"
	"fmt"

	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.LocalTrainer = (*FedMeta)(nil)

// FedMeta minimises the loss after one further gradient step, F(w) = f(w - Inner·∇f(w;
// support); query), including second-order terms (Chen et al. 2019, algorithm 1 with
// MAML). It approximates the product with the Hessian by a difference of gradients (Fallah
// et al. 2020, section 5, "HF"; song2021, equation 10):
//
//	v = ∇f(w - Inner · ∇f(w; support); query)
//	d = (∇f(w + Delta·v; support) - ∇f(w - Delta·v; support)) / (2 Delta)
//	w = Optimizer(w, v - Inner · d)
//
// Batches and personal weights are handled as in [PerFedAvg], which is the same algorithm
// without the term d. The displacement Delta·v must be well above the float32 rounding error of
// the weights, so a very small Delta is a bad choice.
//
// Deviations: the papers' clients compute the exact Hessian. Chen et al. take one step
// per round, on the server; here the client takes the steps of Work, as in Fallah et
// al.'s full Per-FedAvg, which song2021 treats as the same algorithm. Fallah et al. use a
// third batch for the Hessian; we use the support batch, so that v - Inner·d is the
// gradient of F.
type FedMeta struct {
	Work      Work
	Kernel    *kernel.Set
	Inner     float64
	Delta     float64
	Optimizer fed.ClientOptimizer
	// Query divides the examples into those for the look-ahead step and those for the gradient
	// after it.
	Query Query

	pairs               pairs
	v, point, high, low []float32
}

// Kept returns the number of floats that Optimizer stores.
func (d *FedMeta) Kept(weights, shared int) int { return d.Optimizer.Kept(weights, shared) }

// Train implements [fed.LocalTrainer]. It counts all four gradients of each step.
func (d *FedMeta) Train(ctx context.Context, o fed.Objective, t *fed.Turn) (fed.Trained, error) {
	if !(d.Delta > 0) {
		return fed.Trained{}, fmt.Errorf("localtrain: FedMeta's delta is %v, want a value above 0", d.Delta)
	}
	if err := d.pairs.begin(d.Work, d.Query, o.Len(), t); err != nil {
		return fed.Trained{}, err
	}
	n := len(t.W)
	d.v, d.point, d.high, d.low = sized(d.v, n), sized(d.point, n), sized(d.high, n), sized(d.low, n)
	d.Optimizer.Begin(t)
	var done tally
	for support, query := d.pairs.next(); query != nil; support, query = d.pairs.next() {
		if err := done.gradient(ctx, o, d.v, t.W, support); err != nil {
			return fed.Trained{}, err
		}
		d.displace(t.W, d.v, -d.Inner)
		if err := done.gradient(ctx, o, d.v, d.point, query); err != nil {
			return fed.Trained{}, err
		}
		d.displace(t.W, d.v, d.Delta)
		if err := done.gradient(ctx, o, d.high, d.point, support); err != nil {
			return fed.Trained{}, err
		}
		d.displace(t.W, d.v, -d.Delta)
		if err := done.gradient(ctx, o, d.low, d.point, support); err != nil {
			return fed.Trained{}, err
		}
		d.Kernel.Axpy(d.high, d.low, -1)
		d.Kernel.Axpy(d.v, d.high, float32(-d.Inner/(2*d.Delta)))
		d.Optimizer.Step(t.W, d.v)
	}
	return done.end(d.Optimizer, t)
}

// displace sets d.point to w + by·along.
func (d *FedMeta) displace(w, along []float32, by float64) {
	copy(d.point, w)
	d.Kernel.Axpy(d.point, along, float32(by))
}
