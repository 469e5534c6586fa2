// Package limit bounds what one client can contribute to a merge. Clients and the server
// both apply the limits of a version ([Apply]). The limits of the next version follow from
// the updates that were counted before ([History]), so the simulator and the fleet compute
// the same ones.
package limit

import (
	"math"

	"loadstar/fed"
)

// Norm returns the Euclidean norm of x. The result has the same bits on every platform: the
// order of the additions is fixed, and the conversions keep compilers from fusing a product
// with an addition. It is infinite or NaN if a number is.
func Norm(x []float32) float64 {
	var a, b, c, d float64 // four chains of additions take a quarter of the time of one
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		a += float64(p * p)
		b += float64(q * q)
		c += float64(r * r)
		d += float64(s * s)
	}
	for _, f := range x {
		a += float64(float64(f) * float64(f))
	}
	return math.Sqrt((a + b) + (c + d))
}

// Clip scales x down so that its norm is at most the bound, and returns the norm of the
// result. It does not change x if the norm is within the bound, so clipping twice is the
// same as clipping once. A bound that is not positive is none. It does not change an x that
// is not finite, which nobody accepts.
func Clip(x []float32, bound float64) float64 {
	n := Norm(x)
	if !(bound > 0) || n <= bound || !(n <= math.MaxFloat64) {
		return n
	}
	factor := bound / n
	for range 8 {
		for i, f := range x {
			x[i] = float32(float64(f) * factor)
		}
		if n = Norm(x); n <= bound {
			return n
		}
		// Rounding to float32 left the norm above the bound. This factor is far enough from
		// 1 to change a float32.
		factor = min(bound/n, 1-0x1p-20)
	}
	clear(x) // the bound is smaller than the resolution of float32 allows
	return 0
}

// Apply brings an update within limits and sets its norms.
func Apply(l fed.Limits, u *fed.Update) {
	u.Norm = Clip(u.Delta, l.Norm)
	u.ControlNorm = Clip(u.Control, l.Control)
	u.Examples = Examples(l, u.Claimed)
	u.Loss, u.TrainLoss = Loss(l, u.Loss), Loss(l, u.TrainLoss)
}

// Examples returns a claimed number of examples within limits.
func Examples(l fed.Limits, n int) int {
	if l.Examples > 0 {
		return int(min(int64(n), l.Examples))
	}
	return n
}

// Loss returns a claimed loss within limits.
func Loss(l fed.Limits, loss float64) float64 {
	if l.Loss > 0 {
		return min(loss, l.Loss)
	}
	return loss
}
