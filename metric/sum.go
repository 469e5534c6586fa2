package metric

import "math"

// sum adds float64s and keeps what rounding loses of each, so that the order of
// the terms does not show in the total. The zero value is an empty sum.
type sum struct {
	hi, lo float64 // the rounded total; what it lacks
}

func (s *sum) add(x float64) {
	// Without the conversion a product in x may be fused with one of the additions
	// below but not with the other, and the loss would be that of another number.
	x = float64(x)
	total := s.hi + x
	part := total - s.hi
	s.lo += (s.hi - (total - part)) + (x - part)
	s.hi = total
}

func (s *sum) merge(t sum) {
	s.add(t.hi)
	s.lo += t.lo
}

func (s sum) value() float64 { return s.hi + s.lo }

// largest bounds what a sum takes: any number of such terms stays finite. It is
// the square of 1e100, far beyond any load.
const largest = 1e200

// ratio returns a/b, or NaN if b is not positive.
func ratio(a, b float64) float64 {
	if !(b > 0) {
		return math.NaN()
	}
	return a / b
}
