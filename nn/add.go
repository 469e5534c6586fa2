package nn

import (
	"fmt"
	"math/rand/v2"

	"loadstar/nn/kernel"
)

// sum adds its inputs.
type sum struct {
	name  string
	width int
}

func (b Add) wiring() (name string, from []string) { return b.Name, b.From }

func (b Add) build(_ int, rows []int) ([]stage, error) {
	if len(b.From) < 2 {
		return nil, fmt.Errorf("sum %s: From names %d of the blocks to add; want at least 2", b.Name, len(b.From))
	}
	for i, r := range rows {
		if r != rows[0] {
			return nil, fmt.Errorf("sum %s: %s has %d rows and %s has %d; only blocks with the same number of rows can be added", b.Name, b.From[0], rows[0], b.From[i], r)
		}
	}
	return []stage{&sum{b.Name, rows[0]}}, nil
}

func (s *sum) layer() Layer { return Layer{Name: s.name} }

func (s *sum) rows() int { return s.width }

func (s *sum) init([]float32, *rand.Rand) {}

func (s *sum) flops([]gradient) (forward, backward int) { return 0, 0 }

func (s *sum) newTape(maxBatch int) tape {
	return &sumTape{sum: s, y: make([]float32, s.width*maxBatch)}
}

func (s *sum) tapeFloats() (column, once int64) { return int64(s.width), 0 }

type sumTape struct {
	*sum
	y []float32
}

func (t *sumTape) forward(k *kernel.Set, _ []float32, in []*node, n int) []float32 {
	y := t.y[:t.width*n]
	copy(y, in[0].x)
	for _, v := range in[1:] {
		k.Axpy(y, v.x, 1)
	}
	return y
}

func (t *sumTape) backward(k *kernel.Set, _, _ []float32, in []*node, gradients []gradient, dout []float32, _ int) {
	for i, v := range in {
		gradients[i].put(k, v.d, dout)
	}
}
