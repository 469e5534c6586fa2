package leak

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestLeastSquares(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	truth, b := make([]float64, 40), make([]float64, 60)
	for i := range truth {
		truth[i] = r.NormFloat64()
	}
	var a []Entry
	for row := range b {
		for range 10 {
			column := r.IntN(len(truth))
			a = append(a, Entry{row, column, 1})
			b[row] += truth[column]
		}
	}
	got := LeastSquares(a, len(truth), b, 200)
	for i := range truth {
		if math.Abs(got[i]-truth[i]) > 1e-6 {
			t.Fatalf("x[%d] is %g, want %g", i, got[i], truth[i])
		}
	}
}

func TestMeanOf(t *testing.T) {
	// The mean absolute errors of -1 and 2 for loads with a mean of 0.25, each relative to 0.5.
	if got := MeanOf(-1, 2, 1.25/0.5, 1.75/0.5); math.Abs(got-0.25) > 1e-12 {
		t.Errorf("the mean is %g", got)
	}
}
