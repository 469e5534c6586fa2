package serveropt

import "testing"

func TestDescent(t *testing.T) {
	wantSteps(t, Descent{Rate: .5}, []float32{1, -1},
		step{[]float64{.5, 3}, []float64{1.25, .5}},
		step{[]float64{-1, 0}, []float64{.75, .5}})
	wantSteps(t, Descent{Rate: 1}, []float32{1}, step{[]float64{.25}, []float64{1.25}})
}

// TestDescentRoundsOnce moves 1, above which float32s are 2^-23 apart, by a little
// more than half of that. Were the step rounded first, to 2^-24, the sum would lie
// halfway and go to the even 1.
func TestDescentRoundsOnce(t *testing.T) {
	wantSteps(t, Descent{Rate: 1}, []float32{1}, step{[]float64{0x1p-24 + 0x1p-50}, []float64{1 + 0x1p-23}})
}
