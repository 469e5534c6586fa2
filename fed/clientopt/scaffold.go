package clientopt

import (
	"fmt"

	"loadstar/fed"
	"loadstar/nn/kernel"
)

var _ fed.ClientOptimizer = (*Scaffold)(nil)

// Scaffold is SCAFFOLD's client (Karimireddy et al. 2020; reddi2021, appendix B.2,
// algorithm 6, option II). The server has the control variate c. The client has its own,
// c_i, which it stores between rounds and which equals c in its first round. With K steps
// in a round:
//
//	w -= rate · (g - c_i + c)
//	c_i' = c_i - c + (received - w) / (K · rate)
//
// The client sends c_i' - c_i with its update.
//
// If the rate changes from step to step, K · rate is the sum of the steps' rates.
//
// Deviations: personal weights have no control variates and take plain SGD steps. If a
// round's rate is 0, c_i does not change; the paper would divide by zero.
type Scaffold struct {
	Kernel *kernel.Set
	Rate   Rate

	course course
	path   float64 // sum of the steps' rates
	first  bool
	shared []fed.Span
	shift  []float32 // c - c_i
}

// Kept returns the length of the client's control variate, which is stored between rounds.
func (*Scaffold) Kept(weights, shared int) int { return shared }

// Begin reads the control variates of the task and the client. It panics if the task has no
// control variate.
func (o *Scaffold) Begin(t *fed.Turn) {
	n := len(t.Task.Shared)
	if len(t.Task.Control) != n || len(t.Kept) != n || len(t.Control) != n {
		panic(fmt.Sprintf("clientopt: SCAFFOLD on %d shared weights with %d control variates of the server, %d kept and room for %d changes",
			n, len(t.Task.Control), len(t.Kept), len(t.Control)))
	}
	o.course.begin(o.Rate, t)
	o.path, o.first, o.shared = 0, t.First, t.Shared
	o.shift = zeroed(o.shift, n)
	if !t.First {
		copy(o.shift, t.Task.Control)
		o.Kernel.Axpy(o.shift, t.Kept, -1)
	}
}

// Step adds c - c_i to the shared part of g and updates w.
func (o *Scaffold) Step(w, g []float32) {
	rate := o.course.next()
	if o.path += rate; !o.Rate.varies() {
		o.path = float64(o.course.step) * rate // more exact than a sum
	}
	if !o.first {
		shift := o.shift
		for _, s := range o.shared {
			n := s.Hi - s.Lo
			o.Kernel.Axpy(g[s.Lo:s.Hi], shift[:n], 1)
			shift = shift[n:]
		}
	}
	o.Kernel.Axpy(w, g, float32(-rate))
}

// End writes the new control variate to t.Kept, and its change to t.Control.
func (o *Scaffold) End(t *fed.Turn) {
	if t.First {
		copy(t.Kept, t.Task.Control)
	}
	o.shared = nil // do not retain the worker's memory
	if o.path == 0 {
		clear(t.Control)
		return
	}
	k := 0
	for _, s := range t.Shared {
		for _, w := range t.W[s.Lo:s.Hi] {
			slope := (float64(t.Task.Shared[k]) - float64(w)) / o.path
			next := float32(slope - float64(o.shift[k]))
			t.Control[k] = next - t.Kept[k]
			t.Kept[k] = next
			k++
		}
	}
}
