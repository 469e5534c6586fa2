package serveropt

import "testing"

// TestMomentum uses beta1 = 1/2, rate 2 and displacements 1 and 3.
//
//	dampening 0:    m = 1, phi = 2;     m = .5 + 3 = 3.5,    phi = 2 + 7 = 9
//	dampening 1/2:  m = .5, phi = 1;    m = .25 + 1.5 = 1.75, phi = 1 + 3.5 = 4.5
func TestMomentum(t *testing.T) {
	wantSteps(t, &Momentum{Rate: 2, Beta1: .5}, []float32{0},
		step{[]float64{1}, []float64{2}}, step{[]float64{3}, []float64{9}})
	wantSteps(t, &Momentum{Rate: 2, Beta1: .5, Dampening: .5}, []float32{0},
		step{[]float64{1}, []float64{1}}, step{[]float64{3}, []float64{4.5}})

	// With beta1 = 0, Momentum is plain descent.
	wantSteps(t, &Momentum{Rate: .5}, []float32{1, -1},
		step{[]float64{.5, 3}, []float64{1.25, .5}},
		step{[]float64{-1, 0}, []float64{.75, .5}})
}
