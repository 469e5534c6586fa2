package serveropt

import (
	"math"
	"testing"
)

// TestAdagrad uses beta1 = 1/2, tau = 1, rate 2 and displacements 2 and -2: m is 1 and
// then 1/2 - 1 = -1/2.
//
//	of the update:    v = 1 + 4 = 5, phi = 2·1/(√5 + 1);  v = 9, phi - 2·(1/2)/(3 + 1)
//	of the momentum:  v = 1 + 1 = 2, phi = 2·1/(√2 + 1);  v = 2.25, phi - 1/(1.5 + 1)
func TestAdagrad(t *testing.T) {
	first := 2 / (math.Sqrt(5) + 1)
	wantSteps(t, &Adaptive{Rule: Adagrad, Rate: 2, Beta1: .5, Tau: 1}, []float32{0},
		step{[]float64{2}, []float64{first}},
		step{[]float64{-2}, []float64{float64(float32(first)) - .25}})
	first = 2 / (math.Sqrt2 + 1)
	wantSteps(t, &Adaptive{Rule: Adagrad, Rate: 2, Beta1: .5, Tau: 1, SecondMoment: OfMomentum}, []float32{0},
		step{[]float64{2}, []float64{first}},
		step{[]float64{-2}, []float64{float64(float32(first)) - .4}})
}
