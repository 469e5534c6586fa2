package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*Decay)(nil)

// Decay is decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2). It shrinks
// weights before Inner takes the step:
//
//	w *= 1 - rate · All                     (all weights)
//	w *= 1 - rate · Correction · noise²     (matrices and biases of the correction)
//
// Noise is [fed.Turn.Noise], so a client whose load is hard to forecast has a weaker
// correction of the shared forecast than a client with a regular load.
//
// Deviations: the paper has one factor for all weights.
type Decay struct {
	Kernel          *kernel.Set
	Rate            Rate
	All, Correction float64
	Inner           fed.ClientOptimizer

	course     course
	correction []fed.Span
	factor     float64 // Correction · noise²
}

// Kept returns the number of floats that Inner stores.
func (o *Decay) Kept(weights, shared int) int { return o.Inner.Kept(weights, shared) }

// Begin starts Inner's turn.
func (o *Decay) Begin(t *fed.Turn) {
	o.course.begin(o.Rate, t)
	o.correction, o.factor = t.Correction, float64(o.Correction*float64(t.Noise*t.Noise))
	o.Inner.Begin(t)
}

// Step shrinks w and takes Inner's step.
func (o *Decay) Step(w, g []float32) {
	rate := o.course.next()
	if o.All != 0 {
		o.shrink(w, float64(rate*o.All))
	}
	if o.factor != 0 {
		for _, s := range o.correction {
			o.shrink(w[s.Lo:s.Hi], float64(rate*o.factor))
		}
	}
	o.Inner.Step(w, g)
}

// shrink subtracts the given share of w from w.
func (o *Decay) shrink(w []float32, share float64) { o.Kernel.Axpy(w, w, float32(-share)) }

// End ends Inner's turn.
func (o *Decay) End(t *fed.Turn) {
	o.Inner.End(t)
	o.correction = nil // do not retain the worker's memory
}
