package nn

import (
	"math/rand/v2"

	"loadstar/nn/kernel"
)

type prelu struct {
	name     string
	channels int
}

func (b PReLU) wiring() (name string, from []string) { return b.Name, nil }

func (b PReLU) build(_ int, rows []int) ([]stage, error) {
	return []stage{&prelu{b.Name, rows[0]}}, nil
}

func (p *prelu) layer() Layer {
	return Layer{Name: p.name, Kind: KindPReLU, Tensors: []Tensor{
		{Name: p.name + ".weight", Shape: []int{p.channels}},
	}}
}

func (p *prelu) rows() int { return p.channels }

func (p *prelu) init(w []float32, _ *rand.Rand) {
	for i := range w {
		w[i] = 0.25
	}
}

func (p *prelu) flops([]gradient) (forward, backward int) { return 0, 0 }

func (p *prelu) newTape(maxBatch int) tape {
	n := p.channels * maxBatch
	return &preluTape{prelu: p, y: make([]float32, n), product: make([]float32, n), ones: ones(maxBatch)}
}

func (p *prelu) tapeFloats() (column, once int64) { return 2*int64(p.channels) + 1, 0 }

type preluTape struct {
	*prelu
	y, product, ones []float32
}

func (t *preluTape) forward(k *kernel.Set, w []float32, in []*node, n int) []float32 {
	k.PReLUForward(t.y, in[0].x, w, n)
	return t.y[:t.channels*n]
}

func (t *preluTape) backward(k *kernel.Set, w, g []float32, in []*node, gradients []gradient, dout []float32, n int) {
	k.PReLUBackward(dout, in[0].x, t.product, w, n)
	rowSums(k, g, t.product, t.ones, t.channels, n, 1)
	gradients[0].put(k, in[0].d, dout)
}
