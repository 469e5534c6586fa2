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

	rate float64 // of this turn
}

// Kept is 0.
func (*SGD) Kept(weights, shared int) int { return 0 }

// Begin looks up the round's rate.
func (o *SGD) Begin(t *fed.Turn) { o.rate = o.Rate.At(t.Task.Round) }

// Step moves w; g stays as it is.
func (o *SGD) Step(w, g []float32) { o.Kernel.Axpy(w, g, float32(-o.rate)) }

// End does nothing.
func (*SGD) End(*fed.Turn) {}
