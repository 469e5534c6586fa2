package clientopt

import (
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

func TestProx(t *testing.T) {
	k := kernels(t)
	o := &Prox{Kernel: k, Mu: 0.5, Inner: &SGD{Kernel: k, Rate: Rate{Base: 0.5}}}
	// The middle weight is personal. At the received weights, the proximal term is 0:
	//   w = (1, 2, 3) - (1, 1, -2)/2 = (0.5, 1.5, 4)
	// The proximal term is then (0.5-1, -, 4-3)/2 = (-0.25, -, 0.5):
	//   w = (0.5, 1.5, 4) - (1-0.25, 1, -2+0.5)/2 = (0.125, 1, 4.75)
	tr := turn(o, []float32{1, 2, 3}, fed.Span{Lo: 0, Hi: 1}, fed.Span{Lo: 2, Hi: 3})
	run(o, tr, []float32{1, 1, -2}, []float32{1, 1, -2})
	check(t, "weights", tr.W, 0.125, 1, 4.75)
}

// Prox with Adam takes the same steps as Adam on the gradient plus the proximal term.
func TestProxAdam(t *testing.T) {
	k := kernels(t)
	adam := Adam{Kernel: k, Rate: Rate{Base: 0.1}, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-3}
	inner := adam
	o := &Prox{Kernel: k, Mu: 2, Inner: &inner}
	tr := turn(o, []float32{1, 1}, fed.Span{Lo: 0, Hi: 1})
	run(o, tr, []float32{1, 1}, []float32{0.5, 0.5})

	// After the first step both weights are 0.9000999 = 1 - 0.1/1.001, so the proximal
	// term is 2·(-0.0999001) for the shared weight and 0 for the personal one.
	want := turn(&adam, []float32{1, 1})
	run(&adam, want, []float32{1, 1}, []float32{0.5 - 2*0.0999001, 0.5})
	near(t, "weights", tr.W, float64(want.W[0]), float64(want.W[1]))
	if tr.W[0] == tr.W[1] {
		t.Error("the proximal term has no effect")
	}
}

func TestProxWithMuZeroIsInner(t *testing.T) {
	k := kernels(t)
	rapid.Check(t, func(rt *rapid.T) {
		v := vectors(rt, 3)
		span := fed.Span{Lo: 0, Hi: rapid.IntRange(0, len(v[0])).Draw(rt, "shared")}
		sgd := &SGD{Kernel: k, Rate: Rate{Base: 0.1}}
		prox := &Prox{Kernel: k, Inner: &SGD{Kernel: k, Rate: Rate{Base: 0.1}}}
		a, b := turn(sgd, v[0], span), turn(prox, v[0], span)
		run(sgd, a, v[1:]...)
		run(prox, b, v[1:]...)
		if !sameBits(a.W, b.W) {
			rt.Fatalf("sgd %v, prox %v", a.W, b.W)
		}
	})
}
