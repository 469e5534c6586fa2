package clientopt

import (
	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*Prox)(nil)

// Prox ties the shared weights to those received, and lets Inner take the steps (Li
// et al. 2020, "FedProx", equation 2; bose2024, figure 4; song2021, equation 5):
//
//	g += Mu · (w - received)
//
// Over [SGD] it is prox, over [Adam] proxadam.
//
// Deviations: personal weights are not tied, for nobody sent any (bose2024, section
// 3). Bose2024's α is Mu/2.
type Prox struct {
	Kernel *kernel.Set
	Mu     float64
	Inner  fed.ClientOptimizer

	shared   []fed.Span
	received []float32
}

// Kept is that of Inner.
func (o *Prox) Kept(weights, shared int) int { return o.Inner.Kept(weights, shared) }

// Begin begins Inner's turn.
func (o *Prox) Begin(t *fed.Turn) {
	o.shared, o.received = t.Shared, t.Task.Shared
	o.Inner.Begin(t)
}

// Step changes g and takes Inner's step.
func (o *Prox) Step(w, g []float32) {
	if o.Mu != 0 { // adding zero could still change the sign of one
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
	o.shared, o.received = nil, nil // they are the worker's
}
