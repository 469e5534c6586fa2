package localtrain

import (
	"math"
	"slices"
	"strings"
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

func TestPFedMe(t *testing.T) {
	d := &PFedMe{Work: Work{Batch: 1, Steps: 2}, Kernel: kernels(t), Lambda: 2, Inner: 0.25, InnerSteps: 2, Optimizer: sgd(t, 0.25)}
	// The target is 4; a step is θ -= ((θ-4) + 2(θ-w))/4.
	//   w = 0:      θ = 0 + 4/4 = 1;  θ = 1 - (-3 + 2)/4 = 1.25
	//               w = 0 - 0.25·2·(0 - 1.25) = 0.625
	//   w = 0.625:  θ = 1.25 - (-2.75 + 1.25)/4 = 1.625;  θ = 1.625 - (-2.375 + 2)/4 = 1.71875
	//               w = 0.625 - 0.25·2·(0.625 - 1.71875) = 1.171875
	// The personal weight takes the inner steps without the Lambda term:
	//   1, 1 + 3/4 = 1.75, 1.75 + 2.25/4 = 2.3125, 2.3125 + 1.6875/4 = 2.734375
	b := same(3, 4)
	b.record = true
	tr := turn(d, []float32{0, 0, 0}, ends...)
	got := train(t, d, b, tr)
	check(t, "weights", tr.W, 1.171875, 2.734375, 1.171875)
	if got.Steps != 4 {
		t.Errorf("%d gradients", got.Steps)
	}
}

// All inner steps of an outer step use the same batch.
func TestPFedMeBatches(t *testing.T) {
	d := &PFedMe{Work: Work{Batch: 2, Steps: 2}, Kernel: kernels(t), Lambda: 1, Inner: 0.1, InnerSteps: 3, Optimizer: sgd(t, 0.1)}
	b := same(1, 1, 2, 3, 4, 5, 6, 7)
	b.record = true
	train(t, d, b, turn(d, []float32{0}, fed.Span{Lo: 0, Hi: 1}))
	x := b.batches
	for i := range x {
		if !slices.Equal(x[i], x[i/3*3]) {
			t.Errorf("batches %v", x)
		}
	}
	if slices.Equal(x[0], x[3]) {
		t.Errorf("batches %v", x)
	}
}

// If the inner problem is solved exactly, the step is along the gradient of the Moreau
// envelope, which for f = curve·(w-c)²/2 is curve·Lambda/(curve+Lambda)·(w-c).
func TestPFedMeFollowsTheEnvelope(t *testing.T) {
	k := kernels(t)
	rapid.Check(t, func(rt *rapid.T) {
		b := same(1, rapid.Float32Range(-4, 4).Draw(rt, "target"))
		b.curve = rapid.Float32Range(0.5, 4).Draw(rt, "curve")
		lambda := rapid.Float64Range(0.5, 4).Draw(rt, "lambda")
		w := rapid.Float32Range(-4, 4).Draw(rt, "weight")
		d := &PFedMe{Work: Work{Batch: 1, Steps: 1}, Kernel: k, Lambda: lambda, Inner: 0.125, InnerSteps: 200, Optimizer: sgd(t, 1)}
		tr := turn(d, []float32{w}, fed.Span{Lo: 0, Hi: 1})
		train(t, d, b, tr)
		curve := float64(b.curve)
		want := curve * lambda / (curve + lambda) * float64(w-b.targets[0][0])
		if got := float64(w) - float64(tr.W[0]); math.Abs(got-want) > 1e-4 {
			rt.Fatalf("%v, want %v", got, want)
		}
	})
}

func TestPFedMeWithoutInnerSteps(t *testing.T) {
	d := &PFedMe{Work: Work{Batch: 1, Steps: 1}, Kernel: kernels(t), Optimizer: sgd(t, 1)}
	if _, err := d.Train(t.Context(), same(1, 1), turn(d, []float32{1})); err == nil || !strings.Contains(err.Error(), "0 inner steps") {
		t.Error(err)
	}
}
