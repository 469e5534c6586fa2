// Package nn trains the small networks that forecast load.
//
// A [Net] is an architecture, which is a graph of blocks. It has no weights and is safe for concurrent use. Weights are
// one flat []float32 that the caller owns. They have the same order and names as in the
// corresponding PyTorch modules. A [Workspace] contains all other memory of a pass, so one
// worker with one workspace can train thousands of clients one after the other without
// allocating.
//
// Inside a workspace the batch is innermost, so a row contains one feature of every example.
// Elementwise loops are therefore contiguous for any layer width, the hidden states of all
// steps are already concatenated, and the matrix kernels can use PyTorch's weight layout.
// Rows are padded to a multiple of [kernel.Lanes] with all-zero examples, whose gradient is zero.
package nn

import (
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

// Block is a building block of a network: [LSTM], [Linear], [PReLU] or [Add]. It reads the
// block before it, or the network's input if it is the first, unless its field From names
// other blocks.
type Block interface {
	// wiring returns the block's name and the names of the blocks that it reads. The latter are
	// nil if it reads the block before it.
	wiring() (name string, from []string)
	// build returns the stages that compute the block for inputs with the given numbers of rows.
	// The first stage reads all inputs, and each of the others reads the stage before it.
	build(lookback int, rows []int) ([]stage, error)
}

// Input is the name under which blocks read the network's input: all steps of the window,
// one after the other.
const Input = "input"

// LSTM is a stack of LSTM layers over the steps of a window, like PyTorch's nn.LSTM: gates
// in the order i, f, g, o, two bias vectors, and initial states of zero. Its output is the
// concatenation of the hidden states of the top layer at all steps, or only the hidden state at
// the last step. An LSTM must be the first block.
type LSTM struct {
	Name   string
	Hidden int
	Layers int // 0 means 1
	Last   bool
}

// Linear is an affine map of the concatenation of its inputs, like PyTorch's nn.Linear.
type Linear struct {
	Name string
	Out  int
	// From names the blocks whose outputs are concatenated, in the order of the weight
	// matrix's columns. If it is empty, the layer reads the block before it.
	From []string
}

// Add is the sum of the outputs of two or more blocks. It has no weights.
type Add struct {
	Name string
	From []string
}

// PReLU is max(x, 0) + a·min(x, 0) with one learned slope a per row, like PyTorch's nn.PReLU.
type PReLU struct {
	Name string
}

// Net is the architecture of a network that maps windows of lookback steps by inputs features
// to outputs.
type Net struct {
	lookback, inputs, outputs int
	blocks                    []Block
	layers                    []Layer
	stages                    []wired // in an order in which each stage comes after those that it reads
	nodes                     []nodeInfo
	weights                   int
}

// These limits on a network's size are far above the needs of load forecasting, and small
// enough that no size overflows on a 32-bit machine.
const (
	maxWidth   = 1 << 14
	maxWeights = 1 << 26
)

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

// Blocks returns the blocks of which the network was built. The caller must not change them.
func (n *Net) Blocks() []Block { return n.blocks }

// Init initialises w as PyTorch initialises the corresponding modules: uniformly within
// ±1/√fan, and PReLU slopes with 0.25. Generators in the same state give the same weights
// on every platform.
func (n *Net) Init(w []float32, rng *rand.Rand) {
	n.check(w)
	for i := range n.stages {
		n.stages[i].init(n.stages[i].part(w), rng)
	}
}

// Flops returns the number of multiplications and additions in the matrix products for one
// batch: in a forward pass, and in a training step without the optimizer.
func (n *Net) Flops(batch int) (forward, training int64) {
	for _, s := range n.stages {
		f, b := s.flops(s.gradients)
		forward += int64(f) * int64(batch)
		training += int64(f+b) * int64(batch)
	}
	return forward, training
}

func (n *Net) check(w []float32) {
	if len(w) != n.weights {
		panic(fmt.Sprintf("nn: %d weights for a network of %d", len(w), n.weights))
	}
}

// Uniform fills w with uniform random numbers within ±bound. Generators in the same state
// give the same numbers on every platform.
func Uniform(w []float32, bound float64, rng *rand.Rand) {
	for i := range w {
		// Convert 53 random bits here, because math/rand does not guarantee that its own
		// conversion stays the same.
		u := float64(rng.Uint64()>>11) / (1 << 53)
		w[i] = float32(bound * (2*u - 1))
	}
}
