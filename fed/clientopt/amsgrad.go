package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*AMSGrad)(nil)

// AMSGrad is [Adam] with the largest second moment of the round so far instead of the
// current one, so that steps do not grow when a second moment decays (Reddi et al. 2018;
// bose2024, figure 4, "AdamAMS"):
//
//	u = max(u, v/(1-β₂ᵏ))
//	w -= rate · m/(1-β₁ᵏ) / (√u + ε)
//
// Deviations: those of Adam. The bias correction is bose2024's; Reddi et al. do not
// correct the bias, and PyTorch corrects it after taking the maximum of v.
type AMSGrad struct {
	Kernel       *kernel.Set
	Rate         Rate
	Beta1, Beta2 float64
	Epsilon      float64

	at      kernel.AdamStep
	m, v, u []float32
}

// Kept returns 0: no state is stored between rounds.
func (*AMSGrad) Kept(weights, shared int) int { return 0 }

// Begin resets the moments.
func (o *AMSGrad) Begin(t *fed.Turn) {
	o.at = kernel.AdamStep{Rate: o.Rate.At(t.Task.Round), Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Epsilon}
	o.m = zeroed(o.m, len(t.W))
	o.v = zeroed(o.v, len(t.W))
	o.u = zeroed(o.u, len(t.W))
}

// Step updates w and does not change g.
func (o *AMSGrad) Step(w, g []float32) {
	o.at.Step++
	o.Kernel.AMSGrad(w, g, o.m, o.v, o.u, o.at)
}

// End does nothing.
func (*AMSGrad) End(*fed.Turn) {}
