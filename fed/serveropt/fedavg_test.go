package serveropt

import "testing"

func TestDescent(t *testing.T) {
	wantSteps(t, Descent{Rate: .5}, []float32{1, -1},
		step{[]float64{.5, 3}, []float64{1.25, .5}},
		step{[]float64{-1, 0}, []float64{.75, .5}})
	wantSteps(t, Descent{Rate: 1}, []float32{1}, step{[]float64{.25}, []float64{1.25}})
}

// TestDescentRoundsOnce moves 1, where float32s are 2^-23 apart, by slightly more than
// half of that. If the step were rounded to 2^-24 first, the sum would lie halfway and
// round to even, which is 1.
func TestDescentRoundsOnce(t *testing.T) {
	wantSteps(t, Descent{Rate: 1}, []float32{1}, step{[]float64{0x1p-24 + 0x1p-50}, []float64{1 + 0x1p-23}})
}
