package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*SGD)(nil)

// SGD is stochastic gradient descent (reddi2021, algorithm 1):
//
//	w -= rate · g
//
// Deviations: none.
type SGD struct {
	Kernel *kernel.Set
	Rate   Rate

	rate float64 // learning rate of this turn
}

// Kept returns 0: no state is stored between rounds.
func (*SGD) Kept(weights, shared int) int { return 0 }

// Begin computes the learning rate of the round.
func (o *SGD) Begin(t *fed.Turn) { o.rate = o.Rate.At(t.Task.Round) }

// Step updates w and does not change g.
func (o *SGD) Step(w, g []float32) { o.Kernel.Axpy(w, g, float32(-o.rate)) }

// End does nothing.
func (*SGD) End(*fed.Turn) {}
