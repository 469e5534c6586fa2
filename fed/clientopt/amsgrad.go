package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*AMSGrad)(nil)

// AMSGrad is [Adam] with each second moment replaced by its largest value so far, in the round
// or in all rounds, so that steps do not grow when a second moment decays (Reddi et al. 2018;
// bose2024, figure 4, "AdamAMS"):
//
//	u = max(u, v/(1-β₂ᵏ))
//	w -= rate · m/(1-β₁ᵏ) / (√u + ε)
//
// Deviations: those of [Adam]. The bias correction is bose2024's; Reddi et al. do not correct
// the bias, and PyTorch corrects it after taking the maximum of v. Line 1 of bose2024's figure
// 4 makes AdamAMS begin a turn with the client's own weights; client.begin: own selects this,
// and the default is to begin with the received weights.
type AMSGrad struct {
	Kernel       *kernel.Set
	Rate         Rate
	Beta1, Beta2 float64
	Epsilon      float64
	Moments      Moments // Reset or Keep

	course  course
	at      kernel.AdamStep
	m, v, u []float32
	all     []fed.Span
}

// Kept returns the number of floats for the moments that the client stores: three for each
// weight, and the number of steps.
func (o *AMSGrad) Kept(weights, shared int) int {
	if o.Moments == Keep {
		return 3*weights + 1
	}
	return 0
}

// Begin resets the moments or continues with those of the last turn.
func (o *AMSGrad) Begin(t *fed.Turn) {
	o.course.begin(o.Rate, t)
	o.at = kernel.AdamStep{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Epsilon}
	o.m = zeroed(o.m, len(t.W))
	o.v = zeroed(o.v, len(t.W))
	o.u = zeroed(o.u, len(t.W))
	if o.Moments == Keep {
		o.all = personal(o.all[:0], nil, len(t.W))
		o.at.Step = restore(t, o.all, o.m, o.v, o.u)
	}
}

// Step updates w and does not change g.
func (o *AMSGrad) Step(w, g []float32) {
	o.at.Rate = o.course.next()
	o.at.Step++
	o.Kernel.AMSGrad(w, g, o.m, o.v, o.u, o.at)
}

// End stores the moments if they are kept.
func (o *AMSGrad) End(t *fed.Turn) {
	if o.Moments == Keep {
		save(t, o.at.Step, o.all, o.m, o.v, o.u)
	}
}
