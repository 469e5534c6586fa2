package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*AMSGrad)(nil)

// AMSGrad is [Adam] whose steps never grow because a second moment fades (Reddi et
// al. 2018; bose2024, figure 4, "AdamAMS"):
//
//	u = max(u, v/(1-β₂ᵏ))
//	w -= rate · m/(1-β₁ᵏ) / (√u + ε)
//
// Deviations: those of Adam. Reddi et al. correct no bias, and PyTorch corrects that
// of the largest v afterwards; this is bose2024's.
type AMSGrad struct {
	Kernel       *kernel.Set
	Rate         Rate
	Beta1, Beta2 float64
	Epsilon      float64

	at      kernel.AdamStep
	m, v, u []float32
}

// Kept is 0.
func (*AMSGrad) Kept(weights, shared int) int { return 0 }

// Begin forgets the moments.
func (o *AMSGrad) Begin(t *fed.Turn) {
	o.at = kernel.AdamStep{Rate: o.Rate.At(t.Task.Round), Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Epsilon}
	o.m = zeroed(o.m, len(t.W))
	o.v = zeroed(o.v, len(t.W))
	o.u = zeroed(o.u, len(t.W))
}

// Step moves w; g stays as it is.
func (o *AMSGrad) Step(w, g []float32) {
	o.at.Step++
	o.Kernel.AMSGrad(w, g, o.m, o.v, o.u, o.at)
}

// End does nothing.
func (*AMSGrad) End(*fed.Turn) {}
