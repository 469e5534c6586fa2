package metric

import "math"

// sum adds float64s with compensated summation, so the total does not depend on the
// order of the terms. The zero value is an empty sum.
type sum struct {
	hi, lo float64 // the rounded total, and the rounding error
}

func (s *sum) add(x float64) {
	// Without the conversion, the compiler could fuse a product in x with only one of the
	// operations below, which would make the rounding error wrong.
	x = float64(x)
	total := s.hi + x
	part := total - s.hi
	s.lo += (s.hi - (total - part)) + (x - part)
	s.hi = total
}

func (s sum) value() float64 { return s.hi + s.lo }

// largest is the largest term that a sum accepts. The sum of any number of such terms is
// finite. The limit allows squares of numbers up to 1e100, which is far above any load.
const largest = 1e200

// ratio returns a/b, or NaN if b is not positive.
func ratio(a, b float64) float64 {
	if !(b > 0) {
		return math.NaN()
	}
	return a / b
}
