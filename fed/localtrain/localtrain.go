// Package localtrain contains the local training algorithms, one file each. They define
// what a client does with its examples in a round.
//
// Personal weights are trained by the same rule as shared ones unless a trainer says otherwise.
// The only place in which a trainer returns personal weights is [fed.Turn].
//
// No trainer allocates memory after its first turn unless a later client has more weights or
// more examples. If a turn ends in an error, the values of W and Control in its [fed.Turn] are
// undefined, and the trainer retains no state from the turn. Kept is unchanged, unless the
// error concerns the control variate or the optimizer's state.
package localtrain

import (
	"context"
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/nn"
)

// tally counts a turn's gradients and sums their losses. The zero value is ready for a new
// turn.
type tally struct {
	steps int
	loss  float64 // sum over all gradients
	last  float64 // loss of the last gradient
}

// gradient computes a gradient and counts it. It returns an error if ctx is done or the
// loss is not finite.
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

// end completes a turn and returns its totals. It checks that the weights are finite before any
// state is stored. One check at the end is enough, because steps only add to weights, and NaN
// or infinity plus a number is never finite.
func (c *tally) end(o fed.ClientOptimizer, t *fed.Turn) (fed.Trained, error) {
	if i := nn.NotFinite(t.W); i >= 0 {
		return fed.Trained{}, fmt.Errorf("localtrain: weight %d is %v after step %d: %w", i, t.W[i], c.steps, fed.ErrDiverged)
	}
	o.End(t)
	if i := nn.NotFinite(t.Control); i >= 0 {
		return fed.Trained{}, fmt.Errorf("localtrain: the change of control variate %d is %v after step %d: %w", i, t.Control[i], c.steps, fed.ErrDiverged)
	}
	for _, state := range [][]float32{t.Kept, t.Moments} {
		if i := nn.NotFinite(state); i >= 0 {
			return fed.Trained{}, fmt.Errorf("localtrain: value %d of the optimizer's state is %v after step %d: %w", i, state[i], c.steps, fed.ErrDiverged)
		}
	}
	return fed.Trained{Steps: c.steps, Loss: c.loss / float64(c.steps)}, nil
}

// sized returns a slice of n floats with arbitrary values. It reuses buf if buf is large
// enough.
func sized(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	return buf[:n]
}
