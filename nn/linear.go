package nn

import (
	"fmt"
	"math"
	"math/rand/v2"

	"loadstar/nn/kernel"
)

type linear struct {
	name    string
	in, out int
}

func (b Linear) build(_, rows int) ([]stage, error) {
	if b.Out < 1 || b.Out > maxWidth {
		return nil, fmt.Errorf("linear layer %s has %d outputs; want 1 to %d", b.Name, b.Out, maxWidth)
	}
	return []stage{&linear{b.Name, rows, b.Out}}, nil
}

func (l *linear) layer() Layer {
	return Layer{Name: l.name, Kind: KindLinear, Tensors: []Tensor{
		{Name: l.name + ".weight", Shape: []int{l.out, l.in}},
		{Name: l.name + ".bias", Shape: []int{l.out}},
	}}
}

func (l *linear) rows() int { return l.out }

func (l *linear) init(w []float32, rng *rand.Rand) { uniform(w, 1/math.Sqrt(float64(l.in)), rng) }

func (l *linear) flops(first bool) (forward, backward int) {
	product := 2 * l.in * l.out
	if first {
		return product, product
	}
	return product, 2 * product
}

func (l *linear) newTape(maxBatch int, first bool) tape {
	t := &linearTape{linear: l, y: make([]float32, l.out*maxBatch), ones: ones(maxBatch)}
	if l.out >= kernel.Lanes {
		t.xt = make([]float32, l.in*maxBatch)
	}
	if !first {
		t.dx = make([]float32, l.in*maxBatch)
	}
	return t
}

func (l *linear) tapeFloats(first bool) (column, once int64) {
	column = int64(l.out) + 1 // y, ones
	if l.out >= kernel.Lanes {
		column += int64(l.in)
	}
	if !first {
		column += int64(l.in)
	}
	return column, 0
}

type linearTape struct {
	*linear
	y, dx, ones []float32
	// xt is the transposed input, or nil if the layer has few outputs. With xt, the
	// backward pass uses MatMul instead of dot products. For a short batch, dot products
	// spend more time on adding lanes than on multiplying.
	xt []float32
}

func (t *linearTape) forward(k *kernel.Set, w, in []float32, n int) []float32 {
	weight, bias := w[:t.out*t.in], w[t.out*t.in:]
	k.MatMul(t.out, n, t.in, weight, t.in, 1, in, n, t.y, n, kernel.Bias(bias))
	return t.y[:t.out*n]
}

func (t *linearTape) backward(k *kernel.Set, w, g, in, dout []float32, n int) []float32 {
	if t.xt == nil {
		k.MatMulT(t.out, t.in, n, 1, dout, n, 0, in, n, 0, g, t.in, false)
	} else {
		k.Transpose(t.in, n, in, n, t.xt, t.in)
		k.MatMul(t.out, t.in, n, dout, n, 1, t.xt, t.in, g, t.in, kernel.Zero())
	}
	rowSums(k, g[t.out*t.in:], dout, t.ones, t.out, n, 1)
	if t.dx == nil {
		return nil
	}
	k.MatMul(t.in, n, t.out, w, 1, t.in, dout, n, t.dx, n, kernel.Zero())
	return t.dx[:t.in*n]
}
