package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*Adam)(nil)

// Adam is the optimizer of Kingma and Ba (2015, algorithm 1). If the moments are reset, k =
// 1, 2, ... counts the steps of one round (bose2023, algorithm 2; bose2024, figure 4):
//
//	m = β₁m + (1-β₁)g,  v = β₂v + (1-β₂)g²
//	w -= rate · m/(1-β₁ᵏ) / (√(v/(1-β₂ᵏ)) + ε)
//
// If the moments are kept, k continues from round to round. If they are averaged, k
// counts the steps of all versions for the shared weights, and the client's own steps
// for the personal weights.
//
// Deviations: bose2024 prints √(v + ε) and corrects the bias by the number of the round;
// bose2023 prints the v of the previous step. We take both for misprints. According to another
// reading of bose2024's figure 4, m and v continue from round to round (lines 7 and 14). Keep
// (client.moments: kept) implements this reading.
type Adam struct {
	Kernel       *kernel.Set
	Rate         Rate
	Beta1, Beta2 float64
	Epsilon      float64
	Moments      Moments

	course course
	at     kernel.AdamStep
	m, v   []float32

	// Only if the moments are averaged:
	shared   []fed.Span
	personal []fed.Span
	own      int // steps of the personal weights
}

// Kept returns the number of floats for the moments that the client stores: two for each
// weight whose moments it keeps, and the number of steps.
func (o *Adam) Kept(weights, shared int) int {
	switch o.Moments {
	case Keep:
		return 2*weights + 1
	case Average:
		return 2*(weights-shared) + 1
	}
	return 0
}

// Begin resets the moments or continues with those of the last turn.
func (o *Adam) Begin(t *fed.Turn) {
	o.course.begin(o.Rate, t)
	o.at = kernel.AdamStep{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Epsilon}
	o.m = zeroed(o.m, len(t.W))
	o.v = zeroed(o.v, len(t.W))
	o.shared, o.personal = nil, o.personal[:0]
	switch o.Moments {
	case Keep:
		o.personal = personal(o.personal, nil, len(t.W))
		o.at.Step = restore(t, o.personal, o.m, o.v)
	case Average:
		o.shared, o.personal = t.Shared, personal(o.personal, t.Shared, len(t.W))
		o.own = restore(t, o.personal, o.m, o.v)
		receive(t, o.m, o.v, o.Beta1, o.Beta2)
		o.at.Step = t.Done
	}
}

// Step updates w and does not change g.
func (o *Adam) Step(w, g []float32) {
	o.at.Rate = o.course.next()
	o.at.Step++
	if o.Moments != Average {
		o.Kernel.Adam(w, g, o.m, o.v, o.at)
		return
	}
	o.own++
	o.step(w, g, o.shared, o.at)
	own := o.at
	own.Step = o.own
	o.step(w, g, o.personal, own)
}

func (o *Adam) step(w, g []float32, spans []fed.Span, at kernel.AdamStep) {
	for _, s := range spans {
		o.Kernel.Adam(w[s.Lo:s.Hi], g[s.Lo:s.Hi], o.m[s.Lo:s.Hi], o.v[s.Lo:s.Hi], at)
	}
}

// End stores the moments that the client keeps, and writes those that are averaged to
// t.Moments.
func (o *Adam) End(t *fed.Turn) {
	switch o.Moments {
	case Keep:
		save(t, o.at.Step, o.personal, o.m, o.v)
	case Average:
		save(t, o.own, o.personal, o.m, o.v)
		send(t, o.m, o.v)
		o.shared = nil // do not retain the worker's memory
	}
}
