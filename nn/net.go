// Package nn trains the small recurrent networks that forecast load.
//
// A [Net] is an architecture: it has no weights and is safe for concurrent use. Weights are
// one flat []float32 that the caller owns. They have the same order and names as in the
// corresponding PyTorch modules. A [Workspace] contains all other memory of a pass, so one
// worker with one workspace can train thousands of clients one after the other without
// allocating.
//
// Inside a workspace the batch is innermost: a row contains one feature of every example.
// Elementwise loops are therefore contiguous for any layer width, the hidden states of all
// steps are already concatenated, and the matrix kernels can use PyTorch's weight layout.
// Rows are padded to a multiple of [kernel.Lanes] with examples of zeros, whose gradient is
// zero.
package nn

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// Tensor is a named part of the flat weight vector, in row-major order.
type Tensor struct {
	Name   string
	Shape  []int
	Offset int
}

// Len returns the number of weights.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Kind is the type of a layer.
type Kind string

// These are the kinds of layers that have weights.
const (
	KindLSTM   Kind = "lstm"
	KindLinear Kind = "linear"
	KindPReLU  Kind = "prelu"
)

// Layer is a group of consecutive tensors. All weights of a layer are shared, or all are
// personal.
type Layer struct {
	Name    string
	Kind    Kind
	Tensors []Tensor
}

// Offset returns the position of the layer's first weight in the flat weight vector.
func (l Layer) Offset() int { return l.Tensors[0].Offset }

// Len returns the number of weights.
func (l Layer) Len() int {
	n := 0
	for _, t := range l.Tensors {
		n += t.Len()
	}
	return n
}

// Block is a building block of a network: [LSTM], [Linear] or [PReLU].
type Block interface {
	// build returns the stages that compute the block for an input with the given number of
	// rows.
	build(lookback, rows int) ([]stage, error)
}

// LSTM is a stack of LSTM layers over the steps of a window, like PyTorch's nn.LSTM: gates
// in the order i, f, g, o, two bias vectors, and initial states of zero. Its output is the
// concatenation of the hidden states of the top layer at all steps, or the hidden state at
// the last step only. An LSTM must be the first block.
type LSTM struct {
	Name   string
	Hidden int
	Layers int // 0 means 1
	Last   bool
}

// Linear is an affine map, like PyTorch's nn.Linear.
type Linear struct {
	Name string
	Out  int
}

// PReLU is max(x, 0) + a·min(x, 0) with one learned slope a per row, like PyTorch's nn.PReLU.
type PReLU struct {
	Name string
}

// Net is the architecture of a network that maps windows of lookback steps by inputs features
// to outputs.
type Net struct {
	lookback, inputs, outputs int
	layers                    []Layer
	stages                    []stage
	offsets                   []int // offset of each stage's weights in the weight vector
	weights                   int
}

// These limits of a network's size are far above the needs of load forecasting, and small
// enough that no size overflows on a 32-bit machine.
const (
	maxWidth   = 1 << 14
	maxWeights = 1 << 26
)

// Build returns a network that applies the blocks one after the other.
func Build(lookback, inputs int, blocks ...Block) (*Net, error) {
	if lookback < 1 || inputs < 1 || lookback > maxWidth || inputs > maxWidth || lookback*inputs > maxWidth {
		return nil, fmt.Errorf("a window of %d steps by %d inputs is not possible; both must be at least 1, and their product at most %d", lookback, inputs, maxWidth)
	}
	if len(blocks) == 0 {
		return nil, errors.New("a network needs at least one block")
	}
	n := &Net{lookback: lookback, inputs: inputs, outputs: lookback * inputs}
	names := map[string]bool{}
	for i, b := range blocks {
		if _, recurrent := b.(LSTM); recurrent && i > 0 {
			return nil, fmt.Errorf("block %d: an LSTM must come first", i+1)
		}
		stages, err := b.build(lookback, n.outputs)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i+1, err)
		}
		for _, s := range stages {
			l := s.layer()
			n.offsets = append(n.offsets, n.weights)
			for j := range l.Tensors {
				t := &l.Tensors[j]
				if names[t.Name] {
					return nil, fmt.Errorf("block %d: two tensors are named %s", i+1, t.Name)
				}
				names[t.Name] = true
				t.Offset = n.weights
				n.weights += t.Len()
			}
			n.layers = append(n.layers, l)
			n.stages = append(n.stages, s)
			n.outputs = s.rows()
			if n.outputs > maxWidth || n.weights > maxWeights {
				return nil, fmt.Errorf("layer %s makes the network larger than %d rows or %d weights", l.Name, maxWidth, maxWeights)
			}
		}
	}
	return n, nil
}

// Lookback returns the number of steps of a window.
func (n *Net) Lookback() int { return n.lookback }

// Inputs returns the number of features of a step.
func (n *Net) Inputs() int { return n.inputs }

// Outputs returns the number of values that the network computes for a window.
func (n *Net) Outputs() int { return n.outputs }

// Weights returns the length of the flat weight vector.
func (n *Net) Weights() int { return n.weights }

// Layers returns the layers in the order of their weights. The caller must not
// change them.
func (n *Net) Layers() []Layer { return n.layers }

// Init initialises w as PyTorch initialises the corresponding modules: uniformly within
// ±1/√fan, and PReLU slopes with 0.25. Generators in the same state give the same weights
// on every platform.
func (n *Net) Init(w []float32, rng *rand.Rand) {
	n.check(w)
	for i, s := range n.stages {
		s.init(n.stageWeights(w, i), rng)
	}
}

// Flops returns the number of multiplications and additions in the matrix products for one
// batch: in a forward pass, and in a training step without the optimizer.
func (n *Net) Flops(batch int) (forward, training int64) {
	for i, s := range n.stages {
		f, b := s.flops(i == 0)
		forward += int64(f) * int64(batch)
		training += int64(f+b) * int64(batch)
	}
	return forward, training
}

func (n *Net) stageWeights(w []float32, i int) []float32 {
	end := n.weights
	if i+1 < len(n.offsets) {
		end = n.offsets[i+1]
	}
	return w[n.offsets[i]:end:end]
}

func (n *Net) check(w []float32) {
	if len(w) != n.weights {
		panic(fmt.Sprintf("nn: %d weights for a network of %d", len(w), n.weights))
	}
}

// uniform fills w with uniform random numbers within ±bound.
func uniform(w []float32, bound float64, rng *rand.Rand) {
	for i := range w {
		// Convert 53 random bits here, because math/rand does not guarantee that its own
		// conversion stays the same.
		u := float64(rng.Uint64()>>11) / (1 << 53)
		w[i] = float32(bound * (2*u - 1))
	}
}
