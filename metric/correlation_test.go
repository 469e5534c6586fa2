package metric

import (
	"math"
	"testing"
)

func TestCorrelation(t *testing.T) {
	for _, c := range []struct {
		x, y []float64
		want float64
	}{
		{[]float64{1, 2, 3}, []float64{2, 4, 6}, 1},
		{[]float64{1, 2, 3}, []float64{3, 2, 1}, -1},
		{[]float64{1, 1, 1}, []float64{1, 2, 3}, 0},
		{[]float64{1, math.NaN(), 1}, []float64{1, 2, 3}, 0},
	} {
		if got := Correlation(c.x, c.y); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("correlation of %v and %v is %g, want %g", c.x, c.y, got, c.want)
		}
	}
}
