package metric

import "math"

// Correlation returns the correlation of two sequences, or 0 if one of them is constant or not
// finite.
func Correlation(x, y []float64) float64 {
	n := float64(len(x))
	var meanX, meanY, xx, yy, xy float64
	for i := range x {
		meanX, meanY = meanX+x[i]/n, meanY+y[i]/n
	}
	for i := range x {
		dx, dy := x[i]-meanX, y[i]-meanY
		xx, yy, xy = xx+dx*dx, yy+dy*dy, xy+dx*dy
	}
	c := xy / math.Sqrt(xx*yy)
	if math.IsNaN(c) || xx < 1e-24*n || yy < 1e-24*n {
		return 0
	}
	return c
}
