package serveropt

import (
	"math"
	"testing"
)

// TestYogi uses beta1 = 1/2, beta2 = 3/4, tau = 1, rate 2 and displacements 2 and -2: m
// is 1 and then -1/2.
//
//	of the update:    v = 1 < 4: v = 1 + 1 = 2, phi = 2/(√2 + 1)
//	                  v = 2 < 4: v = 2 + 1 = 3, phi - 1/(√3 + 1)
//	of the momentum:  v = 1 = 1: unchanged, phi = 2/(1 + 1) = 1
//	                  v = 1 > 1/4: v = 1 - 1/16, phi - 1/(√.9375 + 1)
func TestYogi(t *testing.T) {
	first := 2 / (math.Sqrt2 + 1)
	wantSteps(t, &Adaptive{Rule: Yogi, Rate: 2, Beta1: .5, Beta2: .75, Tau: 1}, []float32{0},
		step{[]float64{2}, []float64{first}},
		step{[]float64{-2}, []float64{float64(float32(first)) - 1/(math.Sqrt(3)+1)}})
	wantSteps(t, &Adaptive{Rule: Yogi, Rate: 2, Beta1: .5, Beta2: .75, Tau: 1, SecondMoment: OfMomentum}, []float32{0},
		step{[]float64{2}, []float64{1}},
		step{[]float64{-2}, []float64{1 - 1/(math.Sqrt(.9375)+1)}})
}
