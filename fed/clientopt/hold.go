package clientopt

import "loadstar/fed"

var _ fed.ClientOptimizer = (*Hold)(nil)

// Hold keeps the shared weights as the client received them. Only the personal weights
// follow the steps of Inner. Clients that join after a run use Hold to fit their personal
// layers.
type Hold struct {
	Inner fed.ClientOptimizer

	turn *fed.Turn
}

// Kept returns the number of floats that Inner stores.
func (o *Hold) Kept(weights, shared int) int { return o.Inner.Kept(weights, shared) }

// Begin starts Inner's turn.
func (o *Hold) Begin(t *fed.Turn) {
	o.turn = t
	o.Inner.Begin(t)
}

// Step takes Inner's step and restores the shared weights.
func (o *Hold) Step(w, g []float32) {
	o.Inner.Step(w, g)
	shared := o.turn.Task.Shared
	for _, s := range o.turn.Shared {
		shared = shared[copy(w[s.Lo:s.Hi], shared):]
	}
}

// End ends Inner's turn.
func (o *Hold) End(t *fed.Turn) {
	o.Inner.End(t)
	o.turn = nil // do not retain the worker's memory
}
