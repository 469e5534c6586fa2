package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// elementwiseCase compares every elementwise loop with its portable version.
// TestActivations compares the portable version with the exact functions.
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

	// Test the backward pass with activations in their range and gradients of any kind.
	for i := range z {
		z[i] = 1 / (1 + float32(math.Exp(rng.NormFloat64())))
	}
	for i := range tc {
		tc[i] = float32(math.Tanh(rng.NormFloat64()))
	}
	dh, dc := vec(n), vec(n)
	z2 = clone(z)
	dc2 := clone(dc)
	terms := make([]float64, n) // bounds on the terms of dc, which may cancel
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
			vmax[i] = 0 // vmax can be NaN only after v was NaN, and v stays NaN
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
			t.Skip("the portable set is the reference; other tests check it against known numbers")
		}
		rng := rand.New(rand.NewPCG(5, 6))
		for _, kind := range flavours {
			for _, n := range append([]int{0}, sizes...) {
				elementwiseCase(t, s, rng, n, kind)
			}
		}
	})
}

// TestActivations compares sigmoid and tanh of every set with float64, over the whole range
// and near zero, where tanh must keep its relative accuracy.
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

// TestAdam checks one step computed by hand: with m = v = 0, the first step moves every
// weight by the rate, against the sign of its gradient.
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

// TestAMSGrad checks three steps computed by hand, with β₁ = β₂ = ½ and ε = 0 to keep the
// numbers simple. Gradients 2, 0, 0:
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
