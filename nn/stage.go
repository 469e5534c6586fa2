package nn

import (
	"math/rand/v2"

	"loadstar/nn/kernel"
)

// stage computes one layer or one sum. Matrices have one row per feature and n columns, where
// n is the padded batch size. A stage is immutable; its tape contains the data that the
// backward pass needs.
type stage interface {
	layer() Layer // has no tensors if the stage has no weights
	rows() int    // number of rows of the output
	init(w []float32, rng *rand.Rand)
	// flops returns the number of floating-point operations in matrix products per example,
	// for the forward and the backward pass.
	flops(gradients []gradient) (forward, backward int)
	// newTape returns a tape for up to maxBatch columns.
	newTape(maxBatch int) tape
	// tapeFloats returns the number of floats that newTape allocates for each column, and
	// the number that does not depend on the columns.
	tapeFloats() (column, once int64)
}

// tape is a stage's part of a workspace.
type tape interface {
	// forward returns the output for the inputs in. The tape owns the output.
	forward(k *kernel.Set, w []float32, in []*node, n int) []float32
	// backward must follow the forward pass with the same w, in and n. It writes the
	// gradient of w to g and treats the gradient of each input as gradients says. dout is
	// the gradient of the output, which backward may overwrite.
	backward(k *kernel.Set, w, g []float32, in []*node, gradients []gradient, dout []float32, n int)
}

// gradient is what a stage does with the gradient of one of its inputs. It is fixed when the
// network is built, so the gradients of a node with several readers are always added in the
// same order, from the last reader to the first, and need not be cleared beforehand.
type gradient uint8

const (
	skipped gradient = iota // nothing, because the input is the network's input
	written                 // the stage is the first to write it in a backward pass
	added                   // a later stage has written it
	// reused means that the gradient of the stage's output becomes that of the input. The two
	// share memory, so the stage either does nothing or changes dout in place.
	reused
)

// start returns the value to which a matrix product is added.
func (g gradient) start() kernel.Start {
	if g == added {
		return kernel.Accumulate()
	}
	return kernel.Zero()
}

// put adds d to dst, or overwrites dst with d.
func (g gradient) put(k *kernel.Set, dst, d []float32) {
	switch g {
	case written:
		copy(dst, d)
	case added:
		k.Axpy(dst[:len(d)], d, 1)
	}
}

// node is the network's input or the output of a stage, in a workspace.
type node struct {
	rows int
	x    []float32 // rows × n
	d    []float32 // the gradient of x; nil for the network's input
	// xt is the transpose of x, or nil if no layer needs it. With xt, linear layers compute the
	// gradient of their weights with MatMul instead of dot products. For a small batch, dot
	// products spend more time on adding lanes than on multiplying.
	xt         []float32
	transposed bool // xt is the transpose of the current x
}

// transpose returns the transpose of x, which it computes only for the first reader.
func (v *node) transpose(k *kernel.Set, n int) []float32 {
	if !v.transposed {
		k.Transpose(v.rows, n, v.x, n, v.xt, v.rows)
		v.transposed = true
	}
	return v.xt
}

// ones returns a row of n ones.
func ones(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// rowSums writes the sums of the rows of x over segs consecutive matrices. It multiplies them
// by a row of ones.
func rowSums(k *kernel.Set, dst, x, ones []float32, rows, n, segs int) {
	k.MatMulT(rows, 1, n, segs, x, n, rows*n, ones, n, 0, dst, 1, false)
}
