package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*Adam)(nil)

// Adam is the optimizer of Kingma and Ba (2015, algorithm 1) for the steps
// k = 1, 2, ... of one round (bose2023, algorithm 2; bose2024, figure 4):
//
//	m = β₁m + (1-β₁)g,  v = β₂v + (1-β₂)g²
//	w -= rate · m/(1-β₁ᵏ) / (√(v/(1-β₂ᵏ)) + ε)
//
// Deviations: bose2024 prints √(v + ε) and corrects the bias by the number of the round;
// bose2023 prints the v of the previous step. We take both for misprints.
type Adam struct {
	Kernel       *kernel.Set
	Rate         Rate
	Beta1, Beta2 float64
	Epsilon      float64

	at   kernel.AdamStep
	m, v []float32
}

// Kept returns 0: no state is stored between rounds.
func (*Adam) Kept(weights, shared int) int { return 0 }

// Begin resets the moments.
func (o *Adam) Begin(t *fed.Turn) {
	o.at = kernel.AdamStep{Rate: o.Rate.At(t.Task.Round), Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Epsilon}
	o.m = zeroed(o.m, len(t.W))
	o.v = zeroed(o.v, len(t.W))
}

// Step updates w and does not change g.
func (o *Adam) Step(w, g []float32) {
	o.at.Step++
	o.Kernel.Adam(w, g, o.m, o.v, o.at)
}

// End does nothing.
func (*Adam) End(*fed.Turn) {}
