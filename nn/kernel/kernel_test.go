package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
)

func TestSelect(t *testing.T) {
	best, err := Select("")
	if err != nil || best != nil && best.Name() != Available()[0].Name() {
		t.Fatalf("Select(\"\") = %v, %v; want the first of %v", best, err, Available())
	}
	for _, want := range Available() {
		if got, err := Select(want.Name()); err != nil || got.Name() != want.Name() {
			t.Errorf("Select(%q) = %v, %v", want, got, err)
		}
	}
	_, err = Select("avx1024")
	if err == nil || !strings.Contains(err.Error(), "portable") {
		t.Errorf("Select of an unknown set: %v; want an error that lists the available sets", err)
	}
}

// TestExpected fails if the machine's sets are not those that CI expects, so that a bug in
// the detection cannot skip the tests of the assembly.
func TestExpected(t *testing.T) {
	want := os.Getenv("LOADSTAR_TEST_KERNELS")
	if want == "" {
		t.Skip("LOADSTAR_TEST_KERNELS is not set")
	}
	if got := strings.Trim(fmt.Sprint(Available()), "[]"); got != want {
		t.Errorf("available sets are %q, want %q", got, want)
	}
}

// forEachSet runs a test for every set.
func forEachSet(t *testing.T, f func(t *testing.T, s *Set)) {
	for _, s := range Available() {
		t.Run(s.Name(), func(t *testing.T) { f(t, s) })
	}
}

// flavour is a kind of test data for the loops, such as ordinary numbers or NaN.
type flavour string

var flavours = []flavour{"normal", "large", "denormal", "zeros", "infinities", "nans"}

// fill fills x with random numbers of the given kind and returns it.
func fill(rng *rand.Rand, x []float32, kind flavour) []float32 {
	for i := range x {
		v := float32(rng.NormFloat64())
		switch kind {
		case "large":
			v *= 1e6
		case "denormal":
			v *= 1e-39
		case "zeros":
			if rng.IntN(3) > 0 {
				v = 0
			}
		case "infinities":
			if rng.IntN(5) == 0 {
				v = float32(math.Inf(1 - 2*rng.IntN(2)))
			}
		case "nans":
			if rng.IntN(5) == 0 {
				v = float32(math.NaN())
			}
		}
		x[i] = v
	}
	return x
}

// near fails unless got[i] is within tol(i) of want[i]. If want[i] is not finite, got[i] must
// not be finite either; whether it is NaN or infinite depends on rounding.
func near(t *testing.T, what string, got, want []float32, tol func(i int) float64) {
	t.Helper()
	for i := range want {
		g, w := float64(got[i]), float64(want[i])
		if finite(w) != finite(g) || finite(w) && math.Abs(g-w) > tol(i) {
			t.Fatalf("%s[%d] = %g, want %g ± %.2g", what, i, g, w, tol(i))
		}
	}
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// relative allows an error of eps relative to the wanted value, plus the spacing of
// denormal numbers.
func relative(want []float32, eps float64) func(int) float64 {
	return func(i int) float64 { return eps*math.Abs(float64(want[i])) + 1e-37 }
}

func clone(x []float32) []float32 { return append([]float32(nil), x...) }

// sizes are vector and matrix sizes at and near the widths of vectors and tiles.
var sizes = []int{1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 63, 64, 65, 100}

// TestFMAPeak checks that the number of operations is proportional to the number of rounds, and
// a multiple of the number of operations on a whole vector.
func TestFMAPeak(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		one, ten := s.FMAPeak(1), s.FMAPeak(10)
		if one <= 0 || ten != 10*one || s.FMAPeak(0) != 0 {
			t.Errorf("1 round counts %d, 10 count %d", one, ten)
		}
		if lanes := max(s.asm.lanes, 1); one%(2*lanes) != 0 {
			t.Errorf("%d operations are not whole vectors of %d", one, lanes)
		}
	})
}

// TestShortSlicesPanic checks that every loop panics if one of its arguments is one float
// too short.
func TestShortSlicesPanic(t *testing.T) {
	const n, rows = 16, 3
	full := func(k int) []float32 { return make([]float32, k) }
	// call runs a loop with slices of the given lengths, one of which is too short.
	type call struct {
		name    string
		lengths []int
		run     func(s *Set, x [][]float32)
	}
	at := AdamStep{Step: 1}
	calls := []call{
		{"MatMul", []int{4 * 5, 5 * n, 4 * n, 4}, func(s *Set, x [][]float32) { s.MatMul(4, n, 5, x[0], 5, 1, x[1], n, x[2], n, Bias(x[3])) }},
		{"MatMul transposed", []int{4 * 5, 5 * n, 4 * n, 4}, func(s *Set, x [][]float32) { s.MatMul(4, n, 5, x[0], 1, 4, x[1], n, x[2], n, Bias(x[3])) }},
		{"MatMul vector", []int{4 * 5, 5, 4, 4}, func(s *Set, x [][]float32) { s.MatMul(4, 1, 5, x[0], 5, 1, x[1], 1, x[2], 1, Bias(x[3])) }},
		{"MatMulT", []int{3 * 4 * n, 3 * 5 * n, 4 * 5}, func(s *Set, x [][]float32) {
			s.MatMulT(4, 5, n, 3, x[0], n, 4*n, x[1], n, 5*n, x[2], 5, false)
		}},
		{"Transpose", []int{9 * n, n * 9}, func(s *Set, x [][]float32) { s.Transpose(9, n, x[0], n, x[1], 9) }},
		{"GatesForward", []int{4 * n, n, n, n, n}, func(s *Set, x [][]float32) { s.GatesForward(x[0], x[1], x[2], x[3], full(n)) }},
		{"GatesBackward", []int{4 * n, n, n, n}, func(s *Set, x [][]float32) { s.GatesBackward(x[0], x[1], x[2], full(n), x[3]) }},
		{"PReLUForward", []int{rows * n, rows * n}, func(s *Set, x [][]float32) { s.PReLUForward(x[0], x[1], full(rows), n) }},
		{"PReLUBackward", []int{rows * n, rows * n, rows * n}, func(s *Set, x [][]float32) { s.PReLUBackward(x[0], x[1], x[2], full(rows), n) }},
		{"Axpy", []int{n}, func(s *Set, x [][]float32) { s.Axpy(full(n), x[0], 1) }},
		{"Proximal", []int{n, n}, func(s *Set, x [][]float32) { s.Proximal(full(n), x[0], x[1], 1) }},
		{"Adam", []int{n, n, n}, func(s *Set, x [][]float32) { s.Adam(full(n), x[0], x[1], x[2], at) }},
		{"AMSGrad", []int{n, n, n, n}, func(s *Set, x [][]float32) { s.AMSGrad(full(n), x[0], x[1], x[2], x[3], at) }},
	}
	panics := func(f func()) (did bool) {
		defer func() { did = recover() != nil }()
		f()
		return false
	}
	forEachSet(t, func(t *testing.T, s *Set) {
		for _, c := range calls {
			args := len(c.lengths)
			if c.name == "GatesForward" {
				args-- // the hidden state gives the length
			}
			for short := -1; short < args; short++ {
				var x [][]float32
				for i, k := range c.lengths {
					if i == short {
						k--
					}
					x = append(x, full(k))
				}
				if got := panics(func() { c.run(s, x) }); got != (short >= 0) {
					t.Errorf("%s with argument %d short: panic %v", c.name, short, got)
				}
			}
		}
		if !panics(func() { s.Adam(full(1), full(1), full(1), full(1), AdamStep{}) }) {
			t.Error("no panic for Adam with step number 0")
		}
	})
}

// TestConcurrentUse uses one set in several goroutines, so that the race detector can
// report unsafe sharing.
func TestConcurrentUse(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 9))
				for range 20 {
					matMulCase(t, s, rng, 1+rng.IntN(20), 1+rng.IntN(70), rng.IntN(30), false, 0, "normal")
				}
			})
		}
		wg.Wait()
	})
}
