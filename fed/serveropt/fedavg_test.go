package serveropt

import "testing"

func TestDescent(t *testing.T) {
	wantSteps(t, Descent{Rate: .5}, []float32{1, -1},
		step{[]float64{.5, 3}, []float64{1.25, .5}},
		step{[]float64{-1, 0}, []float64{.75, .5}})
	wantSteps(t, Descent{Rate: 1}, []float32{1}, step{[]float64{.25}, []float64{1.25}})
}

// TestDescentRoundsOnce moves a weight of 1 by slightly more than 2^-24, half of the
// distance to the next float32. If the step were first rounded to 2^-24, the sum would lie
// halfway between two float32s and round to even, which is 1.
func TestDescentRoundsOnce(t *testing.T) {
	wantSteps(t, Descent{Rate: 1}, []float32{1}, step{[]float64{0x1p-24 + 0x1p-50}, []float64{1 + 0x1p-23}})
}
