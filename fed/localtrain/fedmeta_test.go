package localtrain

import (
	"math"
	"strings"
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

func TestFedMeta(t *testing.T) {
	d := &FedMeta{Work: Work{Batch: 2, Steps: 2}, Kernel: kernels(t), Inner: 0.5, Delta: 0.25, Optimizer: sgd(t, 0.5)}
	// All targets are 2 and the Hessian is 1. At w = 0:
	//   ahead 0 + 2/2 = 1, v = -1
	//   d = ((0 - 0.25 - 2) - (0 + 0.25 - 2))/0.5 = -1, which is the Hessian times v
	//   w = 0 - 0.5·(-1 + 0.5·1) = 0.25
	// At 0.25 everything is scaled by 1.75/2: w = 0.25 + 0.25·0.875 = 0.46875.
	tr := turn(d, []float32{0, 0, 0}, ends...)
	got := train(t, d, same(3, 2, 2, 2), tr)
	check(t, "weights", tr.W, 0.46875, 0.46875, 0.46875)
	if got.Steps != 8 {
		t.Errorf("%d gradients", got.Steps)
	}
}

// For f = curve·(w-c)²/2 and any Delta, FedMeta descends along the gradient of F(w) =
// curve·(1 - Inner·curve)²·(w-c)²/2.
func TestFedMetaOnAQuadratic(t *testing.T) {
	k := kernels(t)
	rapid.Check(t, func(rt *rapid.T) {
		b := same(1, rapid.Float32Range(-4, 4).Draw(rt, "target"))
		b.curve = rapid.Float32Range(0.1, 4).Draw(rt, "curve")
		inner := rapid.Float64Range(0, 1).Draw(rt, "inner")
		delta := rapid.Float64Range(0.1, 1).Draw(rt, "delta")
		w := rapid.Float32Range(-4, 4).Draw(rt, "weight")
		d := &FedMeta{Work: Work{Batch: 1, Steps: 1}, Kernel: k, Inner: inner, Delta: delta, Optimizer: sgd(t, 1)}
		tr := turn(d, []float32{w}, fed.Span{Lo: 0, Hi: 1})
		train(t, d, b, tr)
		shrink := 1 - inner*float64(b.curve)
		want := float64(b.curve) * shrink * shrink * float64(w-b.targets[0][0])
		if got := float64(w) - float64(tr.W[0]); math.Abs(got-want) > 1e-3 {
			rt.Fatalf("meta-gradient %v, want %v", got, want)
		}
	})
}

// quartic is the objective f(w) = w⁴/4, whose Hessian depends on w.
type quartic struct{}

func (quartic) Len() int { return 1 }
func (quartic) Gradient(g, w []float32, _ []int) float64 {
	g[0] = w[0] * w[0] * w[0]
	return 0
}
func (quartic) Loss([]float32, []int) float64 { return 0 }

func TestFedMetaOnAQuartic(t *testing.T) {
	d := &FedMeta{Work: Work{Batch: 1, Steps: 1}, Kernel: kernels(t), Inner: 0.1, Delta: 0.25, Optimizer: sgd(t, 1)}
	// At w = 1: ahead 1 - 0.1 = 0.9, v = 0.729. With h = Delta·v,
	//   d = ((1+h)³ - (1-h)³)/(2 Delta) = 3v + Delta²·v³ = 2.187 + 0.0625·0.387420489 = 2.2112137806
	// where 2.187 is v times the Hessian 3w² = 3.
	//   w = 1 - (0.729 - 0.22112137806) = 0.49212137806
	tr := turn(d, []float32{1}, fed.Span{Lo: 0, Hi: 1})
	train(t, d, quartic{}, tr)
	if math.Abs(float64(tr.W[0])-0.49212137806) > 1e-6 {
		t.Error(tr.W)
	}
}

func TestFedMetaWithoutDelta(t *testing.T) {
	d := &FedMeta{Work: Work{Batch: 1, Steps: 1}, Kernel: kernels(t), Optimizer: sgd(t, 1)}
	if _, err := d.Train(t.Context(), quartic{}, turn(d, []float32{1})); err == nil || !strings.Contains(err.Error(), "delta is 0") {
		t.Error(err)
	}
}
