package serveropt

import (
	"math"
	"testing"
)

// TestAdam uses beta1 = 1/2, beta2 = 3/4, tau = 1, rate 2 and displacements 2 and -2: m
// is 1 and then -1/2.
//
//	of the update:    v = .75 + 1 = 1.75, phi = 2/(√1.75 + 1)
//	                  v = 1.3125 + 1 = 2.3125, phi - 1/(√2.3125 + 1)
//	of the momentum:  v = .75 + .25 = 1, phi = 2/(1 + 1) = 1
//	                  v = .75 + .0625 = .8125, phi - 1/(√.8125 + 1)
func TestAdam(t *testing.T) {
	first := 2 / (math.Sqrt(1.75) + 1)
	wantSteps(t, &Adaptive{Rule: Adam, Rate: 2, Beta1: .5, Beta2: .75, Tau: 1}, []float32{0},
		step{[]float64{2}, []float64{first}},
		step{[]float64{-2}, []float64{float64(float32(first)) - 1/(math.Sqrt(2.3125)+1)}})
	wantSteps(t, &Adaptive{Rule: Adam, Rate: 2, Beta1: .5, Beta2: .75, Tau: 1, SecondMoment: OfMomentum}, []float32{0},
		step{[]float64{2}, []float64{1}},
		step{[]float64{-2}, []float64{1 - 1/(math.Sqrt(.8125)+1)}})
}
