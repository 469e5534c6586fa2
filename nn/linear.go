package nn

import (
	"fmt"
	"math"
	"math/rand/v2"

	"loadstar/nn/kernel"
)

// linear multiplies the concatenation of its inputs by a matrix. The concatenation is never
// written to memory, because each input is multiplied by its columns of the matrix.
type linear struct {
	name    string
	parts   []int // rows of each input
	in, out int   // in is the sum of parts
}

func (b Linear) wiring() (name string, from []string) { return b.Name, b.From }

func (b Linear) build(_ int, rows []int) ([]stage, error) {
	if b.Out < 1 || b.Out > maxWidth {
		return nil, fmt.Errorf("linear layer %s has %d outputs; want 1 to %d", b.Name, b.Out, maxWidth)
	}
	in := 0
	for _, r := range rows {
		if in += r; in > maxWidth {
			return nil, fmt.Errorf("linear layer %s reads more than %d rows", b.Name, maxWidth)
		}
	}
	return []stage{&linear{b.Name, rows, in, b.Out}}, nil
}

func (l *linear) layer() Layer {
	return Layer{Name: l.name, Kind: KindLinear, Tensors: []Tensor{
		{Name: l.name + ".weight", Shape: []int{l.out, l.in}},
		{Name: l.name + ".bias", Shape: []int{l.out}},
	}}
}

func (l *linear) rows() int { return l.out }

func (l *linear) init(w []float32, rng *rand.Rand) { Uniform(w, 1/math.Sqrt(float64(l.in)), rng) }

func (l *linear) flops(gradients []gradient) (forward, backward int) {
	forward = 2 * l.in * l.out
	backward = forward
	for i, g := range gradients {
		if g != skipped {
			backward += 2 * l.parts[i] * l.out
		}
	}
	return forward, backward
}

// transposes reports whether the layer is wide enough for the transposition of its inputs to be
// worthwhile.
func (l *linear) transposes() bool { return l.out >= kernel.Lanes }

func (l *linear) newTape(maxBatch int) tape {
	return &linearTape{linear: l, y: make([]float32, l.out*maxBatch), ones: ones(maxBatch)}
}

func (l *linear) tapeFloats() (column, once int64) { return int64(l.out) + 1, 0 }

type linearTape struct {
	*linear
	y, ones []float32
}

func (t *linearTape) forward(k *kernel.Set, w []float32, in []*node, n int) []float32 {
	weight, start := w[:t.out*t.in], kernel.Bias(w[t.out*t.in:])
	for i, v := range in {
		k.MatMul(t.out, n, t.parts[i], weight, t.in, 1, v.x, n, t.y, n, start)
		weight, start = weight[t.parts[i]:], kernel.Accumulate()
	}
	return t.y[:t.out*n]
}

func (t *linearTape) backward(k *kernel.Set, w, g []float32, in []*node, gradients []gradient, dout []float32, n int) {
	rowSums(k, g[t.out*t.in:], dout, t.ones, t.out, n, 1)
	for i, v := range in {
		rows := t.parts[i]
		if v.xt == nil {
			k.MatMulT(t.out, rows, n, 1, dout, n, 0, v.x, n, 0, g, t.in, false)
		} else {
			k.MatMul(t.out, rows, n, dout, n, 1, v.transpose(k, n), rows, g, t.in, kernel.Zero())
		}
		if gradients[i] != skipped {
			k.MatMul(rows, n, t.out, w, 1, t.in, dout, n, v.d, n, gradients[i].start())
		}
		w, g = w[rows:], g[rows:]
	}
}
