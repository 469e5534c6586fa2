// Package kernel contains the loops in which training spends most of its time, in assembly for
// AVX-512, AVX2+FMA and NEON, each with a portable version in Go.
//
// A [Set] is one implementation of all loops. [Default] returns the fastest set that the
// CPU supports, or the one that LOADSTAR_KERNEL names. [Available] returns all supported
// sets, fastest first.
//
// Matrices are row-major slices of float32 with a row stride. Package nn stores the batch
// innermost: a row contains one feature of every example, so every elementwise loop runs
// over contiguous memory. Loops accept any size, and are fastest if rows are a multiple of
// [Lanes].
//
// A Set is immutable and safe for concurrent use. Methods panic if a slice is shorter than the
// given sizes require, and never access memory beyond those sizes. Output slices must not
// overlap input slices, except for arguments that are both input and output. NaN and infinity
// propagate to the results; the caller must check for them. Results of different sets agree
// within rounding. The same call on the same set and architecture always gives the same bits.
package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

//go:generate go -C gen run . -dir ..

// Env is the environment variable that selects a kernel set.
const Env = "LOADSTAR_KERNEL"

// Lanes is the number of floats of which row lengths should be multiples, so that they are
// efficient with every set.
const Lanes = 16

// Set is one implementation of the hot loops.
type Set struct {
	name string
	asm  loops // the zero value in the portable set
}

// Name returns the name under which [Select] finds the set.
func (s *Set) Name() string { return s.name }

// String returns the set's name.
func (s *Set) String() string { return s.name }

var portable = &Set{name: "portable"}

var available = sync.OnceValue(func() []*Set { return append(native(), portable) })

// Available returns the sets that this CPU supports, fastest first. The portable set is
// always the last.
func Available() []*Set { return slices.Clone(available()) }

// Select returns the set with the given name, or the fastest if name is empty.
func Select(name string) (*Set, error) {
	sets := available()
	if name == "" {
		return sets[0], nil
	}
	i := slices.IndexFunc(sets, func(s *Set) bool { return s.name == name })
	if i < 0 {
		names := make([]string, len(sets))
		for i, s := range sets {
			names[i] = s.name
		}
		return nil, fmt.Errorf("kernel set %q is not available on this CPU; choose one of %s", name, strings.Join(names, ", "))
	}
	return sets[i], nil
}

// Default returns the set that the environment variable [Env] names, or the fastest set
// that the CPU supports. The choice is made once.
func Default() (*Set, error) { return defaultSet() }

var defaultSet = sync.OnceValues(func() (*Set, error) {
	s, err := Select(os.Getenv(Env))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Env, err)
	}
	return s, nil
})

// FMAPeak runs n rounds of independent fused multiply-adds on registers, and returns the
// number of floating-point operations. This number divided by the elapsed time is the
// core's peak performance.
func (s *Set) FMAPeak(n int) (flops int) {
	if n <= 0 {
		return 0
	}
	if s.asm.fmaPeak == nil {
		return peakPortable(n)
	}
	s.asm.fmaPeak(uintptr(n))
	return n * s.asm.peakFlops
}

// loops are the assembly functions of an instruction set. Strides are in bytes, counts in
// floats.
type loops struct {
	lanes int
	// tailless means that elementwise loops process only whole vectors, and the portable
	// version processes the remaining floats.
	tailless bool

	mul     tiles[mulTile]
	mulTail []mulTile // tiles of one masked vector; nil if the set has no masks
	dot     tiles[dotTile]
	// transpose transposes 8 rows in blocks of 8 columns.
	transpose func(dst *float32, ldd uintptr, src *float32, lds, blocks uintptr)

	gates         func(zi, zf, zg, zo, cprev, c *float32, n uintptr)
	cellOutput    func(o, c, tc, h *float32, n uintptr)
	gatesBackward func(zi, zf, zg, zo, cprev, tc, dh, dc *float32, n uintptr)
	preluForward  func(y, x, slope *float32, rows, ld, n uintptr)
	preluBackward func(dy, x, product, slope *float32, rows, ld, n uintptr)
	axpy          func(y, x *float32, alpha float32, n uintptr)
	proximal      func(grad, w, w0 *float32, mu float32, n uintptr)
	adam          func(w, grad, m, v *float32, beta1, gain1, beta2, gain2, rate, unbias, eps float32, n uintptr)
	amsgrad       func(w, grad, m, v, vmax *float32, beta1, gain1, beta2, gain2, rate, unbias, eps float32, n uintptr)

	fmaPeak   func(n uintptr)
	peakFlops int // floating-point operations per round of fmaPeak
}

// vectors returns how many of n floats the elementwise loops in assembly process. The
// portable version processes the remaining floats.
func (l *loops) vectors(n int) int {
	switch {
	case l.lanes == 0:
		return 0
	case l.tailless:
		return n - n%l.lanes
	}
	return n
}

// mulTile computes a tile of C = start + A·B, from a fixed number of rows of A and a fixed
// number of vectors of B's rows. If bias is not nil, the start is bias, with one value per row
// of C. Otherwise, it is C itself if accumulate is not 0, and zero if accumulate is 0. The
// function computes blocks tiles, one below the other. k and blocks are at least 1. Only tail
// tiles use lanes, the number of valid floats in their vector.
type mulTile func(c *float32, ldc uintptr, a *float32, rs, cs uintptr, b *float32, ldb, k uintptr, bias *float32, accumulate, blocks, lanes uintptr)

// dotTile computes a tile of C = start + Σ A·Bᵀ. The sum is over segs segments of k floats
// each, which are aseg bytes apart in A and bseg bytes apart in B. The function computes
// blocks tiles side by side. segs and blocks are at least 1.
type dotTile func(c *float32, ldc uintptr, a *float32, lda, aseg uintptr, b *float32, ldb, bseg, k, segs, accumulate, blocks uintptr)

// tiles contains, for each number of columns, the tiles with 1, 2, ... rows.
type tiles[F any] [][]F
