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
		t.Errorf("Select of an unknown set: %v; want an error that lists what there is", err)
	}
}

// TestExpected fails where the machine's sets are not those that CI says it
// should have, so that a broken detection cannot skip the assembly's tests.
func TestExpected(t *testing.T) {
	want := os.Getenv("LOADSTAR_TEST_KERNELS")
	if want == "" {
		t.Skip("LOADSTAR_TEST_KERNELS is not set")
	}
	if got := strings.Trim(fmt.Sprint(Available()), "[]"); got != want {
		t.Errorf("available sets are %q, want %q", got, want)
	}
}

// forEachSet runs a test for every set. Where the reference is the portable one, a
// test has nothing to compare it with.
func forEachSet(t *testing.T, f func(t *testing.T, s *Set)) {
	for _, s := range Available() {
		t.Run(s.Name(), func(t *testing.T) { f(t, s) })
	}
}

// A flavour is a kind of numbers to try the loops with.
type flavour string

var flavours = []flavour{"normal", "large", "denormal", "zeros", "infinities", "nans"}

// fill writes numbers of one kind into x.
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

// near fails unless got is within tol[i] of want[i]. A non-finite number must be
// met by a non-finite one: which kind is left to rounding.
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

// relative allows an error of eps relative to the wanted value, and the steps of
// denormal numbers.
func relative(want []float32, eps float64) func(int) float64 {
	return func(i int) float64 { return eps*math.Abs(float64(want[i])) + 1e-37 }
}

func clone(x []float32) []float32 { return append([]float32(nil), x...) }

// sizes are those around the widths of vectors and tiles.
var sizes = []int{1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 63, 64, 65, 100}

// matMulCase checks one product against float64 arithmetic.
func matMulCase(t *testing.T, s *Set, rng *rand.Rand, m, n, k int, transposed bool, start int, kind flavour) {
	t.Helper()
	rs, cs := k+rng.IntN(3), 1
	if transposed {
		rs, cs = 1, m+rng.IntN(3)
	}
	ldb, ldc := n+rng.IntN(3), n+rng.IntN(3)
	if n == 1 && rng.IntN(2) == 0 {
		ldb, ldc = 1, 1 // a vector, which goes a way of its own
	}
	a := fill(rng, guarded(t, extent(m, k, rs, cs)), kind)
	b := fill(rng, guarded(t, extent(k, n, ldb, 1)), kind)
	c := fill(rng, guarded(t, extent(m, n, ldc, 1)), kind)
	bias := fill(rng, guarded(t, m), kind)
	before := clone(c)
	from := []Start{Zero(), Accumulate(), Bias(bias)}[start]
	s.MatMul(m, n, k, a, rs, cs, b, ldb, c, ldc, from)
	what := fmt.Sprintf("MatMul(%d,%d,%d,transposed=%v,start=%d,%s)", m, n, k, transposed, start, kind)
	checkProduct(t, what, c, before, n, ldc, func(i, j int) (sum, size float64) {
		switch start {
		case 1:
			sum = float64(before[i*ldc+j])
		case 2:
			sum = float64(bias[i])
		}
		size = math.Abs(sum)
		for l := range k {
			p := float64(a[i*rs+l*cs]) * float64(b[l*ldb+j])
			sum += p
			size += math.Abs(p)
		}
		return sum, size
	})
}

func matMulTCase(t *testing.T, s *Set, rng *rand.Rand, m, n, k, segs int, accumulate bool, kind flavour) {
	t.Helper()
	lda, ldb, ldc := k+rng.IntN(3), k+rng.IntN(3), n+rng.IntN(3)
	aseg, bseg := m*lda, n*ldb*rng.IntN(2)
	a := fill(rng, guarded(t, max(segs-1, 0)*aseg+extent(m, k, lda, 1)), kind)
	b := fill(rng, guarded(t, max(segs-1, 0)*bseg+extent(n, k, ldb, 1)), kind)
	c := fill(rng, guarded(t, extent(m, n, ldc, 1)), kind)
	before := clone(c)
	s.MatMulT(m, n, k, segs, a, lda, aseg, b, ldb, bseg, c, ldc, accumulate)
	what := fmt.Sprintf("MatMulT(%d,%d,%d,segs=%d,accumulate=%v,%s)", m, n, k, segs, accumulate, kind)
	checkProduct(t, what, c, before, n, ldc, func(i, j int) (sum, size float64) {
		if accumulate {
			sum = float64(before[i*ldc+j])
		}
		size = math.Abs(sum)
		for g := range segs {
			for l := range k {
				p := float64(a[g*aseg+i*lda+l]) * float64(b[g*bseg+j*ldb+l])
				sum += p
				size += math.Abs(p)
			}
		}
		return sum, size
	})
}

// extent is how many floats a matrix spans.
func extent(rows, cols, rs, cs int) int {
	if rows == 0 || cols == 0 {
		return 0
	}
	return (rows-1)*rs + (cols-1)*cs + 1
}

// checkProduct compares C with its elements in float64, and the gaps between its
// rows with what they held before.
func checkProduct(t *testing.T, what string, c, before []float32, n, ldc int, element func(i, j int) (sum, size float64)) {
	t.Helper()
	for at, got := range c {
		i, j := at/ldc, at%ldc
		if j >= n {
			if math.Float32bits(got) != math.Float32bits(before[at]) {
				t.Fatalf("%s wrote between its rows, at %d", what, at)
			}
			continue
		}
		sum, size := element(i, j)
		if finite(sum) != finite(float64(got)) || finite(sum) && math.Abs(float64(got)-sum) > 1e-6*size+1e-37 {
			t.Fatalf("%s: C[%d,%d] = %g, want %g", what, i, j, got, sum)
		}
	}
}

func TestMatMul(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, m := range []int{0, 1, 2, 5, 6, 7, 13, 25} {
			for _, n := range append([]int{0}, sizes...) {
				for _, k := range []int{0, 1, 8, 20, 97, 200} {
					matMulCase(t, s, rng, m, n, k, rng.IntN(2) == 0, rng.IntN(3), flavours[rng.IntN(len(flavours))])
				}
			}
		}
	})
}

func TestMatMulT(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, m := range []int{0, 1, 2, 3, 6, 7, 20} {
			for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 9, 20} {
				for _, k := range append([]int{0}, sizes...) {
					matMulTCase(t, s, rng, m, n, k, rng.IntN(4), rng.IntN(2) == 0, flavours[rng.IntN(len(flavours))])
				}
			}
		}
	})
}

func TestTranspose(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(7, 8))
		for _, rows := range append([]int{0}, sizes...) {
			for _, cols := range append([]int{0}, sizes...) {
				lds, ldd := cols+rng.IntN(3), rows+rng.IntN(3)
				src := fill(rng, guarded(t, extent(rows, cols, lds, 1)), "normal")
				dst := fill(rng, guarded(t, extent(cols, rows, ldd, 1)), "normal")
				want := clone(dst)
				for i := range rows {
					for j := range cols {
						want[j*ldd+i] = src[i*lds+j]
					}
				}
				s.Transpose(rows, cols, src, lds, dst, ldd)
				near(t, fmt.Sprintf("Transpose(%d,%d)", rows, cols), dst, want, func(int) float64 { return 0 })
			}
		}
	})
}

// elementwiseCase checks every elementwise loop against its portable twin, and
// that against nothing but itself: TestActivations holds it to the real
// functions.
func elementwiseCase(t *testing.T, s *Set, rng *rand.Rand, n int, kind flavour) {
	t.Helper()
	vec := func(n int) []float32 { return fill(rng, guarded(t, n), kind) }
	name := func(loop, out string) string { return fmt.Sprintf("%s(%d,%s).%s", loop, n, kind, out) }

	z, cprev := vec(4*n), vec(n)
	c, tc, h := vec(n), vec(n), vec(n)
	z2, c2, tc2, h2 := clone(z), clone(c), clone(tc), clone(h)
	s.GatesForward(z, cprev, c, tc, h)
	portable.GatesForward(z2, cprev, c2, tc2, h2)
	cellTol := func(i int) float64 { return 2e-6*math.Abs(float64(cprev[i])) + 1e-6 }
	near(t, name("GatesForward", "z"), z, z2, relative(z2, 4e-6))
	near(t, name("GatesForward", "c"), c, c2, cellTol)
	near(t, name("GatesForward", "tc"), tc, tc2, cellTol)
	near(t, name("GatesForward", "h"), h, h2, cellTol)

	// Backward from activations in their range, with gradients of any kind.
	for i := range z {
		z[i] = 1 / (1 + float32(math.Exp(rng.NormFloat64())))
	}
	for i := range tc {
		tc[i] = float32(math.Tanh(rng.NormFloat64()))
	}
	dh, dc := vec(n), vec(n)
	z2 = clone(z)
	dc2 := clone(dc)
	terms := make([]float64, n) // bounds the terms of dc, for what cancels
	for i := range terms {
		terms[i] = 3e-6 * (math.Abs(float64(dh[i])) + math.Abs(float64(dc[i])))
	}
	s.GatesBackward(z, cprev, tc, dh, dc)
	portable.GatesBackward(z2, cprev, tc, dh, dc2)
	near(t, name("GatesBackward", "z"), z, z2, func(i int) float64 {
		return terms[i%n]*(1+math.Abs(float64(cprev[i%n]))) + 1e-37
	})
	near(t, name("GatesBackward", "dc"), dc, dc2, func(i int) float64 { return terms[i] + 1e-37 })

	rows := rng.IntN(4)
	slope := fill(rng, guarded(t, rows), "normal")
	x, y := vec(rows*n), vec(rows*n)
	y2 := clone(y)
	s.PReLUForward(y, x, slope, n)
	portable.PReLUForward(y2, x, slope, n)
	near(t, name("PReLUForward", "y"), y, y2, relative(y2, 1e-6))
	dy, product := vec(rows*n), vec(rows*n)
	dy2, product2 := clone(dy), clone(product)
	s.PReLUBackward(dy, x, product, slope, n)
	portable.PReLUBackward(dy2, x, product2, slope, n)
	near(t, name("PReLUBackward", "dx"), dy, dy2, relative(dy2, 1e-6))
	near(t, name("PReLUBackward", "product"), product, product2, relative(product2, 1e-6))

	a, b, w0 := vec(n), vec(n), vec(n)
	alpha := float32(rng.NormFloat64())
	sum := func(xs ...[]float32) func(int) float64 {
		var before [][]float32
		for _, x := range xs {
			before = append(before, clone(x))
		}
		return func(i int) float64 {
			tol := 1e-37
			for _, x := range before {
				tol += 1e-6 * math.Abs(float64(x[i])) * (1 + math.Abs(float64(alpha)))
			}
			return tol
		}
	}
	a2, tol := clone(a), sum(a, b, w0)
	s.Axpy(a, b, alpha)
	portable.Axpy(a2, b, alpha)
	near(t, name("Axpy", "y"), a, a2, tol)
	s.Proximal(a, b, w0, alpha)
	portable.Proximal(a2, b, w0, alpha)
	near(t, name("Proximal", "g"), a, a2, func(i int) float64 { return 3 * tol(i) })

	w, g, m, v, vmax := vec(n), vec(n), vec(n), vec(n), vec(n)
	for i := range v {
		v[i], vmax[i] = max(v[i], -v[i]), max(vmax[i], -vmax[i])
		if vmax[i] != vmax[i] {
			vmax[i] = 0 // it is NaN only after v, which keeps the NaN, was
		}
	}
	at := AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 1 + rng.IntN(20)}
	w2, m2, v2, vmax2 := clone(w), clone(m), clone(v), clone(vmax)
	mTol, vTol := sum(m, g), func(i int) float64 { return 1e-6*(float64(v2[i])+float64(g[i])*float64(g[i])) + 1e-37 }
	wTol := func(den func(i int) float64) func(i int) float64 {
		return func(i int) float64 {
			return 1e-6*math.Abs(float64(w2[i])) + 0.1*mTol(i)/(den(i)+1e-8)
		}
	}
	s.Adam(w, g, m, v, at)
	portable.Adam(w2, g, m2, v2, at)
	near(t, name("Adam", "m"), m, m2, mTol)
	near(t, name("Adam", "v"), v, v2, vTol)
	near(t, name("Adam", "w"), w, w2, wTol(func(i int) float64 { return math.Sqrt(float64(v2[i])) }))
	copy(w, w2)
	copy(m, m2)
	copy(v, v2)
	mTol = sum(m, g)
	s.AMSGrad(w, g, m, v, vmax, at)
	portable.AMSGrad(w2, g, m2, v2, vmax2, at)
	near(t, name("AMSGrad", "m"), m, m2, mTol)
	near(t, name("AMSGrad", "vmax"), vmax, vmax2, relative(vmax2, 4e-6))
	near(t, name("AMSGrad", "w"), w, w2, wTol(func(i int) float64 { return math.Sqrt(float64(vmax2[i])) }))
}

func TestElementwise(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		if s == portable {
			t.Skip("it is the reference; the tests with numbers worked out by hand hold it")
		}
		rng := rand.New(rand.NewPCG(5, 6))
		for _, kind := range flavours {
			for _, n := range append([]int{0}, sizes...) {
				elementwiseCase(t, s, rng, n, kind)
			}
		}
	})
}

// TestActivations holds sigmoid and tanh of every set to float64's, over the
// whole range and near zero, where tanh must keep its relative accuracy.
func TestActivations(t *testing.T) {
	var xs []float32
	for x := -100.0; x <= 100; x += 0.01 {
		xs = append(xs, float32(x))
	}
	for e := -30.0; e < 0; e += 0.1 {
		xs = append(xs, float32(math.Exp(e)), -float32(math.Exp(e)))
	}
	n := len(xs)
	forEachSet(t, func(t *testing.T, s *Set) {
		z := make([]float32, 4*n)
		for g := range 4 {
			copy(z[g*n:], xs)
		}
		zero, c, tc, h := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		s.GatesForward(z, zero, c, tc, h)
		var sigErr, tanhErr float64
		for i, x := range xs {
			sig, tan := 1/(1+math.Exp(-float64(x))), math.Tanh(float64(x))
			sigErr = max(sigErr, math.Abs(float64(z[i])-sig)/(sig+1e-12))
			tanhErr = max(tanhErr, math.Abs(float64(z[2*n+i])-tan)/math.Abs(tan+1e-30))
		}
		t.Logf("largest relative error: sigmoid %.1e, tanh %.1e", sigErr, tanhErr)
		if sigErr > 5e-7 || tanhErr > 5e-7 {
			t.Errorf("largest relative error: sigmoid %.1e, tanh %.1e; want at most 5e-7", sigErr, tanhErr)
		}
	})
}

// TestAdam works one step out by hand: with m = v = 0 the first step moves every
// weight by the rate, against its gradient's sign.
func TestAdam(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		w, g := []float32{1, 1, 1}, []float32{0.5, -2, 0}
		m, v := make([]float32, 3), make([]float32, 3)
		s.Adam(w, g, m, v, AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 1})
		near(t, "w", w, []float32{0.999, 1.001, 1}, func(int) float64 { return 1e-7 })
		near(t, "m", m, []float32{0.05, -0.2, 0}, func(int) float64 { return 1e-8 })
		near(t, "v", v, []float32{0.00025, 0.004, 0}, func(int) float64 { return 1e-9 })
	})
}

// TestAMSGrad works three steps out by hand, with β₁ = β₂ = ½ and ε = 0 so that the
// numbers are plain. Gradients 2, 0, 0:
//
//	k=1: m=1,    v=2,   v/(1-½)=4,        max 4; w -= 0.1·(1/½)/2      = 0.1
//	k=2: m=½,    v=1,   v/(1-¼)=4/3,      max 4; w -= 0.1·(½/¾)/2      = 0.1/3
//	k=3: m=¼,    v=½,   v/(1-⅛)=4/7,      max 4; w -= 0.1·(¼/⅞)/2      = 0.1/7
func TestAMSGrad(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		n := 19
		w, g, m, v, vmax := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		all := func(x float32) []float32 {
			y := make([]float32, n)
			for i := range y {
				y[i] = x
			}
			return y
		}
		want := 1.0
		copy(w, all(1))
		for k, step := range []float64{0.1, 0.1 / 3, 0.1 / 7} {
			copy(g, all(0))
			if k == 0 {
				copy(g, all(2))
			}
			s.AMSGrad(w, g, m, v, vmax, AdamStep{Rate: 0.1, Beta1: 0.5, Beta2: 0.5, Step: k + 1})
			want -= step
			near(t, fmt.Sprintf("step %d: w", k+1), w, all(float32(want)), func(int) float64 { return 1e-6 })
			near(t, fmt.Sprintf("step %d: vmax", k+1), vmax, all(4), func(int) float64 { return 1e-6 })
		}
		near(t, "m", m, all(0.25), func(int) float64 { return 1e-7 })
		near(t, "v", v, all(0.5), func(int) float64 { return 1e-7 })
	})
}

func TestAxpyAndProximal(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		y := []float32{1, 2, 3, 4, 5}
		s.Axpy(y, []float32{10, 20, 30, 40, 50}, -0.5)
		near(t, "y", y, []float32{-4, -8, -12, -16, -20}, func(int) float64 { return 0 })
		g := []float32{1, 1, 1, 1, 1}
		s.Proximal(g, []float32{3, 2, 1, 0, -1}, []float32{1, 1, 1, 1, 1}, 2)
		near(t, "g", g, []float32{5, 3, 1, -1, -3}, func(int) float64 { return 0 })
	})
}

func TestPReLU(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		exact := func(int) float64 { return 0 }
		x, slope := []float32{-2, 0, 3, -4, 5, -6}, []float32{0.5, 0.25}
		y, product := make([]float32, 6), make([]float32, 6)
		s.PReLUForward(y, x, slope, 3)
		near(t, "y", y, []float32{-1, 0, 3, -1, 5, -1.5}, exact)
		dy := []float32{1, 2, 3, 4, 5, 6}
		s.PReLUBackward(dy, x, product, slope, 3)
		near(t, "dx", dy, []float32{0.5, 1, 3, 1, 5, 1.5}, exact)
		near(t, "product", product, []float32{-2, 0, 0, -16, 0, -36}, exact)
		near(t, "x", x, []float32{-2, 0, 3, -4, 5, -6}, exact)
	})
}

// TestFMAPeak: the count grows with the rounds, by whole vectors of multiply-adds.
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

// TestShortSlicesPanic gives every argument of every loop one float too few.
func TestShortSlicesPanic(t *testing.T) {
	const n, rows = 16, 3
	full := func(k int) []float32 { return make([]float32, k) }
	// call runs a loop with slices of the given lengths, of which one is short.
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
			t.Error("Adam takes step number 0")
		}
	})
}

// TestConcurrentUse shares a set between goroutines; the race detector watches.
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

func FuzzMatMul(f *testing.F) {
	f.Add(uint64(1), uint8(6), uint8(64), uint8(20))
	f.Add(uint64(2), uint8(1), uint8(1), uint8(0))
	f.Fuzz(func(t *testing.T, seed uint64, m, n, k uint8) {
		for _, s := range Available() {
			rng := rand.New(rand.NewPCG(seed, 0))
			kind := flavours[rng.IntN(len(flavours))]
			matMulCase(t, s, rng, int(m), int(n), int(k), rng.IntN(2) == 0, rng.IntN(3), kind)
			matMulTCase(t, s, rng, int(m), int(n), int(k), rng.IntN(4), rng.IntN(2) == 0, kind)
		}
	})
}

func FuzzElementwise(f *testing.F) {
	f.Add(uint64(1), uint8(64))
	f.Add(uint64(2), uint8(0))
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		for _, s := range Available() {
			rng := rand.New(rand.NewPCG(seed, 0))
			elementwiseCase(t, s, rng, int(n), flavours[rng.IntN(len(flavours))])
		}
	})
}
