package nn

import (
	"math/rand/v2"

	"loadstar/nn/kernel"
)

// stage computes one layer. Matrices have one row per feature and n columns, where n is the
// padded batch size. A stage is immutable; its tape contains the data that the backward
// pass needs.
type stage interface {
	layer() Layer
	rows() int // number of rows of the output
	init(w []float32, rng *rand.Rand)
	// flops returns the number of floating-point operations in matrix products per example,
	// for the forward and the backward pass. The first stage computes no gradient of its
	// input.
	flops(first bool) (forward, backward int)
	// newTape returns a tape for up to maxBatch columns.
	newTape(maxBatch int, first bool) tape
	// tapeFloats returns the number of floats that newTape allocates for each column, and
	// the number that does not depend on the columns.
	tapeFloats(first bool) (column, once int64)
}

// tape is a stage's part of a workspace.
type tape interface {
	// forward returns the output for input in. The tape owns the output.
	forward(k *kernel.Set, w, in []float32, n int) []float32
	// backward must follow the forward pass with the same w, in and n. It writes the
	// gradient of w to g and returns the gradient of in, or nil in the first stage. It may
	// overwrite dout.
	backward(k *kernel.Set, w, g, in, dout []float32, n int) []float32
}

// ones returns a row of n ones.
func ones(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// rowSums writes the sums of the rows of x over segs consecutive matrices, by multiplying
// with a row of ones.
func rowSums(k *kernel.Set, dst, x, ones []float32, rows, n, segs int) {
	k.MatMulT(rows, 1, n, segs, x, n, rows*n, ones, n, 0, dst, 1, false)
}
