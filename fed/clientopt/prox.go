package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*Prox)(nil)

// Prox adds a proximal term that pulls the shared weights towards the received weights,
// and then lets Inner take the step (Li et al. 2020, "FedProx", equation 2; bose2024,
// figure 4; song2021, equation 5):
//
//	g += Mu · (w - received)
//
// With [SGD], it is the optimizer prox; with [Adam], it is proxadam.
//
// The received weights are the server's; line 6 of bose2024's figure 4 calls them θ⁰ of the
// previous round. Even if client.begin is own, so that a client begins with its own weights
// (line 1), the term pulls the client towards the server's weights.
//
// Deviations: personal weights have no proximal term, because no received weights exist for
// them (bose2024, section 3). bose2024's α is Mu/2. By default, a client begins with the
// received weights, as in FedProx; client.begin: own follows line 1 of bose2024's figure 4.
type Prox struct {
	Kernel *kernel.Set
	Mu     float64
	Inner  fed.ClientOptimizer

	shared   []fed.Span
	received []float32
}

// Kept returns the number of floats that Inner stores.
func (o *Prox) Kept(weights, shared int) int { return o.Inner.Kept(weights, shared) }

// Begin starts Inner's turn.
func (o *Prox) Begin(t *fed.Turn) {
	o.shared, o.received = t.Shared, t.Task.Shared
	o.Inner.Begin(t)
}

// Step adds the proximal term to g and takes Inner's step.
func (o *Prox) Step(w, g []float32) {
	if o.Mu != 0 { // adding 0 would turn -0 into 0
		received := o.received
		for _, s := range o.shared {
			n := s.Hi - s.Lo
			o.Kernel.Proximal(g[s.Lo:s.Hi], w[s.Lo:s.Hi], received[:n], float32(o.Mu))
			received = received[n:]
		}
	}
	o.Inner.Step(w, g)
}

// End ends Inner's turn.
func (o *Prox) End(t *fed.Turn) {
	o.Inner.End(t)
	o.shared, o.received = nil, nil // do not retain the worker's memory
}
