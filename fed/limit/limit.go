// Package limit bounds what one client can contribute to a merge. Clients and the server both
// apply the limits of a version ([Apply]). The limits of the next version are derived from the
// updates counted so far ([History]).
package limit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"loadstar/fed"
)

// Norm returns the Euclidean norm of x. The result has the same bits on every platform, because
// the order of the additions is fixed and conversions prevent compilers from fusing a
// multiplication with an addition. The result is infinite or NaN if any element of x is.
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

// clip scales x down so that its norm is at most the bound, and returns the norm of the result.
// It does not change x if the norm is within the bound, so clipping twice is the same as
// clipping once. A bound of 0 or less means no bound. clip leaves an x that is not finite
// unchanged, because such vectors are rejected later.
func clip(x []float32, bound float64) float64 {
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
		// Rounding to float32 may leave the norm above the bound. This factor is far enough from
		// 1 to change a float32.
		factor = min(bound/n, 1-0x1p-20)
	}
	clear(x) // the bound is below the resolution of float32
	return 0
}

// clamp limits the magnitude of the numbers in x to the bound. A bound of 0 or less means no
// bound. clamp leaves a number that is not finite unchanged, so that the update is rejected
// later.
func clamp(x []float32, bound float64) {
	if !(bound > 0) {
		return
	}
	most := float32(bound)
	if float64(most) > bound { // a sum of clamped numbers must stay within a multiple of the bound
		most = math.Nextafter32(most, 0)
	}
	// The magnitudes of floats have the same order as their bits without the sign. Most numbers
	// are within the bound.
	limit := math.Float32bits(most)
	for i, f := range x {
		if magnitude := math.Float32bits(f) &^ (1 << 31); magnitude > limit && magnitude <= math.Float32bits(math.MaxFloat32) {
			x[i] = float32(math.Copysign(float64(most), float64(f)))
		}
	}
}

// Apply brings an update within limits and sets its norms. Applying the same limits twice is
// the same as applying them once, because scaling a vector down keeps its numbers within their
// bound.
func Apply(l fed.Limits, u *fed.Update) {
	clamp(u.Delta, l.Coordinate)
	u.Norm = clip(u.Delta, l.Norm)
	u.ControlNorm = clip(u.Control, l.Control)
	u.Examples = Examples(l, u.Claimed)
	u.Loss, u.TrainLoss = Loss(l, u.Loss), Loss(l, u.TrainLoss)
}

// Round rounds the numbers that a client claims to two significant digits. More digits would
// reveal more about individual readings than anyone needs to know.
func Round(u *fed.Update) {
	u.Claimed = int(twoDigits(float64(u.Claimed), 0))
	u.Loss, u.TrainLoss = twoDigits(u.Loss, 0), twoDigits(u.TrainLoss, 0)
}

// RoundNorms rounds the norms of an update up to two significant digits, within the limits. It
// rounds up because a server rejects a sum whose norm exceeds what the norms of its updates
// allow.
func RoundNorms(l fed.Limits, u *fed.Update) {
	u.Norm, u.ControlNorm = roundUp(u.Norm, l.Norm), roundUp(u.ControlNorm, l.Control)
}

func roundUp(norm, limit float64) float64 {
	up := twoDigits(norm, 0)
	if up < norm {
		up = twoDigits(norm, 1)
	}
	if limit > 0 {
		up = min(up, limit)
	}
	return up
}

// twoDigits rounds x to two significant digits and adds the given number of units to the second
// digit. x must not be negative.
func twoDigits(x float64, units int) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', 1, 64), "e")
	digits, err := strconv.Atoi(strings.Replace(mantissa, ".", "", 1))
	power, err2 := strconv.Atoi(exponent)
	rounded, err3 := strconv.ParseFloat(fmt.Sprintf("%de%d", digits+units, power-1), 64)
	if errors.Join(err, err2, err3) != nil {
		return x // only near the largest number that can be represented
	}
	return rounded
}

// Examples returns a claimed number of examples, reduced to the limit.
func Examples(l fed.Limits, n int) int {
	if l.Examples > 0 {
		return int(min(int64(n), l.Examples))
	}
	return n
}

// Loss returns a claimed loss, reduced to the limit.
func Loss(l fed.Limits, loss float64) float64 {
	if l.Loss > 0 {
		return min(loss, l.Loss)
	}
	return loss
}
