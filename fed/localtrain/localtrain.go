// Package localtrain has the local training algorithms: what a client does with its
// examples in a round, one file each.
//
// Personal weights are trained by the same rule as shared ones unless a trainer says
// otherwise. A trainer returns them only in [fed.Turn].
//
// No trainer allocates memory after its first turn unless models or clients grow. If a
// turn ends in an error, W and Control of its [fed.Turn] have undefined values and the
// trainer keeps no state from it. Kept is unchanged, unless the error concerns the
// control variate itself.
package localtrain

import (
	"context"
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/nn"
)

// tally counts a turn's gradients and sums their losses. The zero value is the start of a
// turn.
type tally struct {
	steps int
	loss  float64 // sum over all gradients
	last  float64 // loss of the last gradient
}

// gradient computes and counts one gradient, unless ctx is done.
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

// end completes a turn and reports on it. It checks that the weights are finite before
// any state is stored. One check at the end is enough: steps only add to weights, and
// adding to NaN or infinity never gives a finite number.
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

// sized returns n floats with arbitrary values and reuses buf if it is large enough.
func sized(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	return buf[:n]
}
