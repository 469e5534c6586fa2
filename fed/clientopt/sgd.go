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

	course course
}

// Kept returns 0, because no state is stored between rounds.
func (*SGD) Kept(weights, shared int) int { return 0 }

// Begin starts with the learning rate of the turn's first step.
func (o *SGD) Begin(t *fed.Turn) { o.course.begin(o.Rate, t) }

// Step updates w and does not change g.
func (o *SGD) Step(w, g []float32) { o.Kernel.Axpy(w, g, float32(-o.course.next())) }

// End does nothing.
func (*SGD) End(*fed.Turn) {}
