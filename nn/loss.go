package nn

import (
	"errors"
	"fmt"
	"slices"
)

// Loss measures the difference between the outputs of a network and the targets, as a mean
// over examples and outputs.
type Loss interface {
	// Outputs returns the number of outputs that a network needs for the given number of
	// targets per example.
	Outputs(targets int) int
	// point returns the loss of output number o of an example, and the derivative of the
	// loss with respect to the output.
	point(o int, out, target float32) (loss float64, slope float32)
}

// MSE is the mean squared error.
type MSE struct{}

// Outputs returns targets.
func (MSE) Outputs(targets int) int { return targets }

func (MSE) point(_ int, out, target float32) (float64, float32) {
	e := out - target
	return float64(e) * float64(e), 2 * e
}

// MAE is the mean absolute error. Its derivative at zero error is 0.
type MAE struct{}

// Outputs returns targets.
func (MAE) Outputs(targets int) int { return targets }

func (MAE) point(_ int, out, target float32) (float64, float32) {
	switch e := out - target; {
	case e > 0:
		return float64(e), 1
	case e < 0:
		return float64(-e), -1
	default:
		return float64(e), e // 0, or NaN
	}
}

// Pinball is the quantile loss, max(q·e, (q-1)·e) with e = target - output. The network has
// one output per target and quantile, ordered by target, then by quantile.
type Pinball struct {
	quantiles []float64
}

// NewPinball returns the loss for quantiles in ascending order, each within (0, 1).
func NewPinball(quantiles ...float64) (*Pinball, error) {
	if len(quantiles) == 0 {
		return nil, errors.New("nn: pinball loss without quantiles")
	}
	before := 0.0
	for _, q := range quantiles {
		if !(q > before && q < 1) {
			return nil, fmt.Errorf("nn: quantiles %v do not ascend within (0, 1)", quantiles)
		}
		before = q
	}
	return &Pinball{slices.Clone(quantiles)}, nil
}

// Quantile returns the quantile that output o forecasts.
func (p *Pinball) Quantile(o int) float64 { return p.quantiles[o%len(p.quantiles)] }

// Quantiles returns the quantiles, in ascending order.
func (p *Pinball) Quantiles() []float64 { return slices.Clone(p.quantiles) }

// Outputs returns one output per target and quantile.
func (p *Pinball) Outputs(targets int) int { return targets * len(p.quantiles) }

func (p *Pinball) point(o int, out, target float32) (float64, float32) {
	q := p.Quantile(o)
	switch e := float64(target) - float64(out); {
	case e > 0:
		return q * e, float32(-q)
	case e < 0:
		return (q - 1) * e, float32(1 - q)
	default:
		return e, float32(e) // 0, or NaN
	}
}

// evaluate returns the mean loss of a batch and writes its gradient with respect to the
// outputs to dout. In out and dout, each output is a row of n columns, of which the first
// batch columns are examples and the others are padding with a gradient of zero. Targets
// are row-major by example.
func evaluate(l Loss, out, dout, y []float32, outputs, batch, n int) float64 {
	targets := len(y) / batch
	perTarget := outputs / targets
	scale := float32(1 / float64(outputs*batch))
	var sum float64
	for o := range outputs {
		row := out[o*n : o*n+batch]
		for b, v := range row {
			loss, slope := l.point(o, v, y[b*targets+o/perTarget])
			sum += loss
			dout[o*n+b] = slope * scale
		}
		clear(dout[o*n+batch : (o+1)*n])
	}
	return sum / float64(outputs*batch)
}

// MeanLoss returns the mean loss of a network's outputs for the targets y. Both slices are
// row-major by example.
func MeanLoss(l Loss, out, y []float32) float64 {
	perTarget := l.Outputs(1)
	var sum float64
	for i, v := range out {
		loss, _ := l.point(i, v, y[i/perTarget])
		sum += loss
	}
	return sum / float64(len(out))
}
