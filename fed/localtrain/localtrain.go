// Package localtrain holds the ways in which a client spends its part of a round, a
// file each.
//
// Personal weights, where there are any, train by the same rule as the shared ones
// unless a trainer says otherwise; they leave it in [fed.Turn] alone.
//
// No trainer allocates after its first turn, as long as neither models nor clients
// grow. A turn that ends in an error leaves W and Control of its [fed.Turn] with values
// that mean nothing, and no trace in the trainer. Kept is then as it was, unless the
// error is about the control variate itself.
package localtrain

import (
	"context"
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/nn"
)

// tally counts the gradients of a turn. Its zero value is a turn's start.
type tally struct {
	steps int
	loss  float64 // summed
	last  float64 // loss of the last gradient
}

// gradient takes one gradient, unless ctx is done.
func (c *tally) gradient(ctx context.Context, o fed.Objective, g, w []float32, examples []int) error {
	c.steps++
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("localtrain: before step %d: %w", c.steps, err)
	}
	loss := o.Gradient(g, w, examples)
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("localtrain: the loss is %v at step %d: %w", loss, c.steps, fed.ErrDiverged)
	}
	c.last = loss
	c.loss += loss
	return nil
}

// end finishes a turn and reports on it. It looks for weights that are not finite
// before anything of them is kept. It is enough to look in the end: steps add to
// weights, and nothing that is added to NaN or infinity makes a number of it again.
func (c *tally) end(o fed.ClientOptimizer, t *fed.Turn) (fed.Trained, error) {
	if i := nn.NotFinite(t.W); i >= 0 {
		return fed.Trained{}, fmt.Errorf("localtrain: weight %d is %v after step %d: %w", i, t.W[i], c.steps, fed.ErrDiverged)
	}
	o.End(t)
	if i := nn.NotFinite(t.Control); i >= 0 {
		return fed.Trained{}, fmt.Errorf("localtrain: the change of control variate %d is %v after step %d: %w", i, t.Control[i], c.steps, fed.ErrDiverged)
	}
	return fed.Trained{Steps: c.steps, Loss: c.loss / float64(c.steps)}, nil
}

// sized returns n floats of any value, in the memory of buf if there is enough.
func sized(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	return buf[:n]
}
