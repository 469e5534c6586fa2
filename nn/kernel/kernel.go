// Package kernel holds the few loops in which training spends its time, in
// assembly for AVX-512, AVX2+FMA and NEON, each with a portable twin in Go.
//
// A [Set] is one implementation of all of them. [Default] returns the best one
// that the CPU has, or the one that LOADSTAR_KERNEL names; [Available] returns
// them all, fastest first.
//
// Matrices are row-major slices of float32 with a row stride. The engine above
// keeps a batch innermost, so one row holds one feature of every example and
// every elementwise loop runs over contiguous memory. Loops accept any size, and
// are fastest where rows are a multiple of [Lanes].
//
// A Set is immutable and safe for concurrent use. Methods panic if a slice is
// shorter than the sizes they are given, and never touch memory beyond those
// sizes. What is written must not overlap what is read, unless it is the same
// argument. NaN and infinity in data and gradients are carried through, not
// trapped: finding them is the caller's task. Results of different sets agree
// within rounding; the same call on the same set and architecture gives the same
// bits every time.
package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

//go:generate go -C gen run . -dir ..

// Env names the environment variable that forces a kernel set.
const Env = "LOADSTAR_KERNEL"

// Lanes is the row length, in floats, of which a multiple suits every set.
const Lanes = 16

// Set is one implementation of the hot loops.
type Set struct {
	name string
	asm  loops // zero for the portable set
}

// Name returns the name under which [Select] finds the set.
func (s *Set) Name() string { return s.name }

// String returns the set's name.
func (s *Set) String() string { return s.name }

var portable = &Set{name: "portable"}

var available = sync.OnceValue(func() []*Set { return append(native(), portable) })

// Available returns the sets that this CPU can run, fastest first; the portable
// one is always the last.
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
		return nil, fmt.Errorf("kernel set %q is not available on this CPU (it has %s)", name, strings.Join(names, ", "))
	}
	return sets[i], nil
}

// Default returns the set that the environment variable [Env] names, or the
// fastest that the CPU has. It decides once.
func Default() (*Set, error) { return defaultSet() }

var defaultSet = sync.OnceValues(func() (*Set, error) {
	s, err := Select(os.Getenv(Env))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Env, err)
	}
	return s, nil
})

// FMAPeak runs n rounds of the densest independent multiply-adds that the set
// can express, on registers alone, and returns the number of floating-point
// operations done: divided by the time it took, the core's peak.
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

// loops is what an instruction set provides. Strides are in bytes, counts in
// floats.
type loops struct {
	lanes int
	// tailless says that elementwise loops take whole vectors only, and the
	// portable twin does the rest.
	tailless bool

	mul     tiles[mulTile]
	mulTail []mulTile // one masked vector; nil if there are no masks
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
	peakFlops int // in one round of fmaPeak
}

// vectors returns how many of n floats the elementwise loops in assembly take.
func (l *loops) vectors(n int) int {
	switch {
	case l.lanes == 0:
		return 0
	case l.tailless:
		return n - n%l.lanes
	}
	return n
}

// mulTile computes a tile of C = start + A·B: as many rows of A as the tile has,
// by as many vectors of B's rows as it has. The start is bias, one value per row
// of C, if that is not nil, else C itself if accumulate is not 0, else zero. It
// does so for blocks tiles one below the other. k and blocks are at least 1; lanes
// is for tail tiles, how much of their vector is there.
type mulTile func(c *float32, ldc uintptr, a *float32, rs, cs uintptr, b *float32, ldb, k uintptr, bias *float32, accumulate, blocks, lanes uintptr)

// dotTile computes a tile of C = start + Σ A·Bᵀ over segs segments, aseg and bseg
// bytes apart, of k floats each, for blocks tiles side by side. segs and blocks
// are at least 1.
type dotTile func(c *float32, ldc uintptr, a *float32, lda, aseg uintptr, b *float32, ldb, bseg, k, segs, accumulate, blocks uintptr)

// tiles holds, for each number of columns, the tiles of 1, 2, ... rows.
type tiles[F any] [][]F
