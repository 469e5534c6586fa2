package kernel

import (
	"fmt"
	"math"
)

// GatesForward applies the gates of an LSTM to one step's pre-activations. z contains the
// pre-activations of the four gates i, f, g, o one after the other, each as long as h.
// GatesForward overwrites the pre-activations with the activations. It then computes:
//
//	c = σ(f)·cprev + σ(i)·tanh(g),  tc = tanh(c),  h = σ(o)·tc
func (s *Set) GatesForward(z, cprev, c, tc, h []float32) {
	n := len(h)
	checkLen(n, cprev, c, tc)
	checkLen(4*n, z)
	zi, zf, zg, zo := z[:n], z[n:2*n], z[2*n:3*n], z[3*n:]
	v := s.asm.vectors(n)
	if v > 0 {
		s.asm.gates(&zi[0], &zf[0], &zg[0], &zo[0], &cprev[0], &c[0], uintptr(v))
		s.asm.cellOutput(&zo[0], &c[0], &tc[0], &h[0], uintptr(v))
	}
	gatesForwardPortable(zi[v:], zf[v:], zg[v:], zo[v:], cprev[v:], c[v:], tc[v:], h[v:])
}

// GatesBackward overwrites the activations that [Set.GatesForward] stored in z with the
// gradients of the pre-activations. dh is the gradient of the hidden state, and dc the gradient
// of the cell state. GatesBackward overwrites dc with the gradient of the previous cell state.
func (s *Set) GatesBackward(z, cprev, tc, dh, dc []float32) {
	n := len(dh)
	checkLen(n, cprev, tc, dc)
	checkLen(4*n, z)
	zi, zf, zg, zo := z[:n], z[n:2*n], z[2*n:3*n], z[3*n:]
	v := s.asm.vectors(n)
	if v > 0 {
		s.asm.gatesBackward(&zi[0], &zf[0], &zg[0], &zo[0], &cprev[0], &tc[0], &dh[0], &dc[0], uintptr(v))
	}
	gatesBackwardPortable(zi[v:], zf[v:], zg[v:], zo[v:], cprev[v:], tc[v:], dh[v:], dc[v:])
}

// PReLUForward computes y = max(x, 0) + slope·min(x, 0) for a matrix with n columns. Each
// row is a channel with its own slope.
func (s *Set) PReLUForward(y, x, slope []float32, n int) {
	rows := len(slope)
	checkLen(rows*n, y, x)
	v := s.asm.vectors(n)
	if v > 0 && rows > 0 {
		s.asm.preluForward(&y[0], &x[0], &slope[0], uintptr(rows), bytes(n), uintptr(v))
	}
	if v < n {
		preluForwardPortable(y, x, slope, v, n)
	}
}

// PReLUBackward overwrites dy, the gradient of the output, with the gradient of the input
// x. It writes dy·min(x, 0) to product; the sums of the rows of product are the gradients
// of the slopes.
func (s *Set) PReLUBackward(dy, x, product, slope []float32, n int) {
	rows := len(slope)
	checkLen(rows*n, dy, x, product)
	v := s.asm.vectors(n)
	if v > 0 && rows > 0 {
		s.asm.preluBackward(&dy[0], &x[0], &product[0], &slope[0], uintptr(rows), bytes(n), uintptr(v))
	}
	if v < n {
		preluBackwardPortable(dy, x, product, slope, v, n)
	}
}

// Axpy adds alpha·x to y.
func (s *Set) Axpy(y, x []float32, alpha float32) {
	n := len(y)
	checkLen(n, x)
	v := s.asm.vectors(n)
	if v > 0 {
		s.asm.axpy(&y[0], &x[0], alpha, uintptr(v))
	}
	axpyPortable(y[v:], x[v:], alpha)
}

// Proximal adds mu·(w - w0), the gradient of (mu/2)·‖w - w0‖², to g.
func (s *Set) Proximal(g, w, w0 []float32, mu float32) {
	n := len(g)
	checkLen(n, w, w0)
	v := s.asm.vectors(n)
	if v > 0 {
		s.asm.proximal(&g[0], &w[0], &w0[0], mu, uintptr(v))
	}
	proximalPortable(g[v:], w[v:], w0[v:], mu)
}

// AdamStep contains the constants of one step of Adam or AMSGrad.
type AdamStep struct {
	Rate         float64 // learning rate
	Beta1, Beta2 float64
	Eps          float64
	Step         int // 1 for the first step: the exponent k of the bias corrections
}

// coefficients contains the constants that the loops use, computed from an AdamStep.
type coefficients struct {
	beta1, gain1, beta2, gain2, rate, unbias, eps float32
}

func (m AdamStep) coefficients(unbias func(correction float64) float64) coefficients {
	if m.Step < 1 {
		panic(fmt.Sprintf("kernel: Adam step number %d", m.Step))
	}
	return coefficients{
		beta1: float32(m.Beta1), gain1: float32(1 - m.Beta1),
		beta2: float32(m.Beta2), gain2: float32(1 - m.Beta2),
		rate:   float32(m.Rate / (1 - math.Pow(m.Beta1, float64(m.Step)))),
		unbias: float32(unbias(1 - math.Pow(m.Beta2, float64(m.Step)))),
		eps:    float32(m.Eps),
	}
}

// Adam updates the weights w with gradient g and moments m and v by step number k, as
// PyTorch's Adam does (Kingma and Ba 2015, algorithm 1):
//
//	m = β₁m + (1-β₁)g,  v = β₂v + (1-β₂)g²
//	w -= rate · m/(1-β₁ᵏ) / (√(v/(1-β₂ᵏ)) + ε)
//
// Deviations: none.
func (s *Set) Adam(w, g, m, v []float32, at AdamStep) {
	n := len(w)
	checkLen(n, g, m, v)
	c := at.coefficients(func(x float64) float64 { return 1 / math.Sqrt(x) })
	k := s.asm.vectors(n)
	if k > 0 {
		s.asm.adam(&w[0], &g[0], &m[0], &v[0], c.beta1, c.gain1, c.beta2, c.gain2, c.rate, c.unbias, c.eps, uintptr(k))
	}
	adamPortable(w[k:], g[k:], m[k:], v[k:], c)
}

// AMSGrad is like [Set.Adam], but replaces v/(1-β₂ᵏ) with its largest value so far, which it
// stores in vmax (bose2024, "AdamAMS").
//
// Deviations: PyTorch stores the largest v and corrects the bias of that value.
func (s *Set) AMSGrad(w, g, m, v, vmax []float32, at AdamStep) {
	n := len(w)
	checkLen(n, g, m, v, vmax)
	c := at.coefficients(func(x float64) float64 { return 1 / x })
	k := s.asm.vectors(n)
	if k > 0 {
		s.asm.amsgrad(&w[0], &g[0], &m[0], &v[0], &vmax[0], c.beta1, c.gain1, c.beta2, c.gain2, c.rate, c.unbias, c.eps, uintptr(k))
	}
	amsgradPortable(w[k:], g[k:], m[k:], v[k:], vmax[k:], c)
}

// checkLen panics unless every slice has at least n floats.
func checkLen(n int, slices ...[]float32) {
	for _, x := range slices {
		if len(x) < n {
			panic(fmt.Sprintf("kernel: slice of %d floats where %d are needed", len(x), n))
		}
	}
}
