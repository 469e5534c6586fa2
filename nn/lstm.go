package nn

import (
	"fmt"
	"math"
	"math/rand/v2"

	"loadstar/nn/kernel"
)

// lstm is one layer of an LSTM over all steps. Its weights are, one after the
// other, weight_ih (4H×in), weight_hh (4H×H), bias_ih and bias_hh (4H each).
type lstm struct {
	name      string
	depth     int // position in the stack of layers; 0 is the bottom layer
	steps     int
	in, width int
	last      bool // output only the hidden state of the last step
}

func (b LSTM) wiring() (name string, from []string) { return b.Name, nil }

func (b LSTM) build(lookback int, rows []int) ([]stage, error) {
	if b.Hidden < 1 || b.Hidden > maxWidth/4 || b.Layers < 0 || b.Layers > 64 {
		return nil, fmt.Errorf("LSTM %s has %d layers of %d; it has 1 to 64 of up to %d", b.Name, b.Layers, b.Hidden, maxWidth/4)
	}
	layers, in := max(b.Layers, 1), rows[0]/lookback
	var stages []stage
	for d := range layers {
		stages = append(stages, &lstm{
			name: b.Name, depth: d, steps: lookback, in: in, width: b.Hidden,
			last: b.Last && d == layers-1,
		})
		in = b.Hidden
	}
	return stages, nil
}

func (l *lstm) layer() Layer {
	tensor := func(kind string, shape ...int) Tensor {
		return Tensor{Name: fmt.Sprintf("%s.%s_l%d", l.name, kind, l.depth), Shape: shape}
	}
	return Layer{Name: fmt.Sprintf("%s_l%d", l.name, l.depth), Kind: KindLSTM, Tensors: []Tensor{
		tensor("weight_ih", 4*l.width, l.in),
		tensor("weight_hh", 4*l.width, l.width),
		tensor("bias_ih", 4*l.width),
		tensor("bias_hh", 4*l.width),
	}}
}

func (l *lstm) rows() int {
	if l.last {
		return l.width
	}
	return l.steps * l.width
}

func (l *lstm) init(w []float32, rng *rand.Rand) { Uniform(w, 1/math.Sqrt(float64(l.width)), rng) }

func (l *lstm) flops(gradients []gradient) (forward, backward int) {
	input := 2 * 4 * l.width * l.in * l.steps
	recurrent := 2 * 4 * l.width * l.width * (l.steps - 1) // the first state is zero
	if gradients[0] == skipped {
		return input + recurrent, input + 2*recurrent
	}
	return input + recurrent, 2 * (input + recurrent)
}

// split divides a vector of the layer's weights or gradients into its tensors.
func (l *lstm) split(w []float32) (ih, hh, bih, bhh []float32) {
	gates := 4 * l.width
	ih, w = w[:gates*l.in], w[gates*l.in:]
	hh, w = w[:gates*l.width], w[gates*l.width:]
	return ih, hh, w[:gates], w[gates:]
}

func (l *lstm) newTape(maxBatch int) tape {
	states := l.steps * l.width * maxBatch
	t := &lstmTape{
		lstm: l,
		z:    make([]float32, 4*states),
		c:    make([]float32, states),
		tc:   make([]float32, states),
		h:    make([]float32, states),
		zero: make([]float32, l.width*maxBatch),
		dc:   make([]float32, l.width*maxBatch),
		bias: make([]float32, 4*l.width),
		ones: ones(maxBatch),
		iht:  make([]float32, 4*l.width*l.in),
		hht:  make([]float32, 4*l.width*l.width),
	}
	if l.last {
		t.dh = make([]float32, states)
	}
	return t
}

func (l *lstm) tapeFloats() (column, once int64) {
	steps, width, in := int64(l.steps), int64(l.width), int64(l.in)
	column = 7*steps*width + 2*width + 1 // z, c, tc, h; zero, dc; ones
	if l.last {
		column += steps * width
	}
	return column, 4 * width * (1 + in + width)
}

// lstmTape contains the results of a pass, one step after the other, and buffers.
type lstmTape struct {
	*lstm
	z        []float32 // steps × 4H × n: activations, then their gradients
	c, tc, h []float32 // steps × H × n: cell state, its tanh, hidden state
	dh       []float32 // steps × H × n; used if only the last step has a gradient from above
	zero, dc []float32 // H × n
	bias     []float32 // bias_ih + bias_hh
	ones     []float32
	iht, hht []float32 // the weights transposed
}

func (t *lstmTape) forward(k *kernel.Set, w []float32, from []*node, n int) []float32 {
	in := from[0].x
	ih, hh, bih, bhh := t.split(w)
	for i := range t.bias {
		t.bias[i] = bih[i] + bhh[i]
	}
	if n == 1 {
		t.forwardOne(k, ih, hh, in)
	} else {
		t.forwardBatch(k, ih, hh, in, n)
	}
	if t.last {
		return t.h[(t.steps-1)*t.width*n : t.steps*t.width*n]
	}
	return t.h[:t.steps*t.width*n]
}

func (t *lstmTape) forwardBatch(k *kernel.Set, ih, hh, in []float32, n int) {
	gates, width := 4*t.width, t.width
	for s := range t.steps {
		z := t.z[s*gates*n:]
		k.MatMul(gates, n, t.in, ih, t.in, 1, in[s*t.in*n:], n, z, n, kernel.Bias(t.bias))
		if s > 0 {
			k.MatMul(gates, n, width, hh, width, 1, t.h[(s-1)*width*n:], n, z, n, kernel.Accumulate())
		}
		t.gates(k, s, n)
	}
}

// forwardOne is like forwardBatch, but for a single example, so that each step is a vector.
// It transposes the weights once, because multiplying a vector by transposed weights needs
// no sums across lanes. Over all steps, this saves more time than the transposition costs.
func (t *lstmTape) forwardOne(k *kernel.Set, ih, hh, in []float32) {
	gates, width := 4*t.width, t.width
	k.Transpose(gates, t.in, ih, t.in, t.iht, gates)
	k.Transpose(gates, width, hh, width, t.hht, gates)
	for s := range t.steps {
		copy(t.z[s*gates:], t.bias)
	}
	k.MatMul(t.steps, gates, t.in, in, t.in, 1, t.iht, gates, t.z, gates, kernel.Accumulate())
	for s := range t.steps {
		if s > 0 {
			k.MatMul(1, gates, width, t.h[(s-1)*width:], width, 1, t.hht, gates, t.z[s*gates:], gates, kernel.Accumulate())
		}
		t.gates(k, s, 1)
	}
}

// gates computes the cell state and the hidden state of step s from its pre-activations.
func (t *lstmTape) gates(k *kernel.Set, s, n int) {
	size := t.width * n
	from, to := s*size, (s+1)*size
	k.GatesForward(t.z[4*from:4*to], t.previousCell(s, n), t.c[from:to], t.tc[from:to], t.h[from:to])
}

func (t *lstmTape) previousCell(s, n int) []float32 {
	size := t.width * n
	if s == 0 {
		return t.zero[:size]
	}
	return t.c[(s-1)*size : s*size]
}

func (t *lstmTape) backward(k *kernel.Set, w, g []float32, from []*node, gradients []gradient, dout []float32, n int) {
	in, din := from[0].x, from[0].d
	ih, hh, _, _ := t.split(w)
	gih, ghh, gbih, gbhh := t.split(g)
	gates, width := 4*t.width, t.width
	dh := dout
	if t.last {
		dh = t.dh[:t.steps*width*n]
		before := len(dh) - len(dout)
		clear(dh[:before])
		copy(dh[before:], dout)
	}
	dc := t.dc[:width*n]
	clear(dc)
	for s := t.steps - 1; s >= 0; s-- {
		z := t.z[s*gates*n : (s+1)*gates*n]
		from, to := s*width*n, (s+1)*width*n
		k.GatesBackward(z, t.previousCell(s, n), t.tc[from:to], dh[from:to], dc)
		if s > 0 {
			k.MatMul(width, n, gates, hh, 1, width, z, n, dh[from-width*n:], n, kernel.Accumulate())
		}
		if gradients[0] != skipped {
			k.MatMul(t.in, n, gates, ih, 1, t.in, z, n, din[s*t.in*n:], n, gradients[0].start())
		}
	}
	k.MatMulT(gates, t.in, n, t.steps, t.z, n, gates*n, in, n, t.in*n, gih, t.in, false)
	k.MatMulT(gates, width, n, t.steps-1, t.z[gates*n:], n, gates*n, t.h, n, width*n, ghh, width, false)
	rowSums(k, gbih, t.z, t.ones, gates, n, t.steps)
	copy(gbhh, gbih)
}
