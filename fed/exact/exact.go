// Package exact adds updates as fixed-point integers. A sum therefore does not depend on
// the order of arrival, on batching, on the number of machines, or on crashes in between.
//
// A number x is added as round(x·2^bits). [NewScale] chooses bits so that the sum of all
// updates that a plan allows cannot overflow 63 bits.
package exact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Scale is the fixed-point resolution of a sum, with limits on the size, weight and number of
// its updates. The zero value is not usable. Sums with different scales cannot be merged.
type Scale struct {
	fraction  int // fractional bits
	bound     float32
	maxWeight int64
	updates   int64
}

const (
	maxFraction = 48 // finer than the float32 resolution of any relevant weight
	minFraction = 16
	// maxBits is the maximum number of bits of a fixed-point number. A float64 can represent
	// such a number exactly, and one addition rounds a float64 to such a number (see shift).
	maxBits = 51
)

// NewScale returns the finest scale for the given number of updates with weights up to
// maxWeight and numbers within ±bound. The bound is rounded to float32, because the
// numbers of an update are float32.
func NewScale(bound float64, maxWeight, updates int64) (Scale, error) {
	narrow := float32(bound)
	if !(narrow > 0) || math.IsInf(float64(narrow), 0) || maxWeight < 1 || updates < 1 {
		return Scale{}, fmt.Errorf("exact: the bound is %g, the largest weight %d and the number of updates %d, want all above 0 and a finite bound", bound, maxWeight, updates)
	}
	_, exp := math.Frexp(float64(narrow)) // narrow < 2^exp
	weights := bits.Len64(uint64(maxWeight)) + bits.Len64(uint64(updates))
	fraction := min(62-exp-weights, maxBits-exp, maxFraction)
	if fraction < minFraction || weights > 62 {
		return Scale{}, fmt.Errorf("exact: %d updates of weight %d within ±%g leave %d fractional bits, too few for training: lower the bound, the weights or the cohort", updates, maxWeight, bound, min(fraction, 62-weights))
	}
	if exp+fraction < minFraction {
		return Scale{}, fmt.Errorf("exact: the bound %g is too close to the resolution 2^-%d: raise it", bound, fraction)
	}
	return Scale{fraction, narrow, maxWeight, updates}, nil
}

// Fraction returns the number of fractional bits.
func (s Scale) Fraction() int { return s.fraction }

// Errors that callers can distinguish. After each of them, the sum is unchanged.
var (
	ErrBound  = errors.New("exact: a number is beyond the bound")
	ErrFinite = errors.New("exact: a number is not finite")
	ErrWeight = errors.New("exact: the weight is out of range")
	ErrFull   = errors.New("exact: the sum already has the maximum number of updates")
	ErrShape  = errors.New("exact: lengths or scales differ")
)

// Sum is a weighted sum of vectors. It is not safe for concurrent use, so give each worker
// its own sum and merge them.
type Sum struct {
	scale  Scale
	n      int64
	weight int64
	v      []int64
}

// NewSum returns an empty sum of vectors of the given length.
func NewSum(s Scale, length int) *Sum { return &Sum{scale: s, v: make([]int64, length)} }

// Updates returns the number of vectors added.
func (s *Sum) Updates() int { return int(s.n) }

// Weight returns the sum of the weights of the vectors added.
func (s *Sum) Weight() int64 { return s.weight }

// Len returns the length of the vectors.
func (s *Sum) Len() int { return len(s.v) }

// Reset removes all vectors from the sum.
func (s *Sum) Reset() {
	s.n, s.weight = 0, 0
	clear(s.v)
}

// Check returns the error that Add would return for the vector, except that it does not
// check whether the sum is full.
func (s *Sum) Check(weight int64, x []float32) error {
	if err := s.checkLength(len(x)); err != nil {
		return err
	}
	return s.scale.Check(weight, x)
}

// Check returns the error that [Sum.Check] of a sum with vectors of this length would return.
func (s Scale) Check(weight int64, x []float32) error {
	if err := s.checkWeight(weight); err != nil {
		return err
	}
	bound := magnitude(s.bound)
	for i, f := range x {
		if magnitude(f) > bound {
			return s.numberError(i, f)
		}
	}
	return nil
}

func (s *Sum) checkLength(length int) error {
	if length != len(s.v) {
		return fmt.Errorf("%w: the update has %d numbers, want %d", ErrShape, length, len(s.v))
	}
	return nil
}

func (s Scale) checkWeight(weight int64) error {
	if weight < 1 || weight > s.maxWeight {
		return fmt.Errorf("%w: it is %d, want 1 to %d", ErrWeight, weight, s.maxWeight)
	}
	return nil
}

func (s Scale) numberError(i int, f float32) error {
	if magnitude(f) >= magnitude(float32(math.Inf(1))) {
		return fmt.Errorf("%w: number %d is %g", ErrFinite, i, f)
	}
	return fmt.Errorf("%w: number %d is %g, beyond ±%g", ErrBound, i, f, s.bound)
}

// magnitude returns an integer that orders numbers by absolute value, with infinities
// above all finite numbers and NaNs above infinities. Comparing two magnitudes is one
// integer comparison.
func magnitude(f float32) uint32 { return math.Float32bits(f) &^ (1 << 31) }

// shift returns a number so large that float64s within 2^maxBits units of it are one unit
// apart. Adding a number to shift therefore rounds the number to units, half to even. The bits
// of the sum minus the bits of shift are the number of units.
func (s Scale) shift() float64 { return math.Ldexp(0x1.8p52, -s.fraction) }

// limit returns the largest permitted number as a count of fixed-point units.
func (s Scale) limit() int64 { return count(s.bound, s.shift()) }

func count(f float32, shift float64) int64 {
	return int64(math.Float64bits(float64(f)+shift) - math.Float64bits(shift))
}

// Add adds the vector x, multiplied by the weight. On an error nothing is added.
func (s *Sum) Add(weight int64, x []float32) error {
	if err := s.checkLength(len(x)); err != nil {
		return err
	}
	if err := s.scale.checkWeight(weight); err != nil {
		return err
	}
	if s.n == s.scale.updates {
		return fmt.Errorf("%w, %d", ErrFull, s.n)
	}
	if i := s.accumulate(weight, x); i < len(x) {
		s.accumulate(-weight, x[:i]) // undo; exact for integers
		return s.scale.numberError(i, x[i])
	}
	s.n++
	s.weight += weight
	return nil
}

// accumulate adds weight·x to the sum up to the first invalid number, and returns the
// index of that number, or len(x).
func (s *Sum) accumulate(weight int64, x []float32) int {
	shift, bound := s.scale.shift(), magnitude(s.scale.bound)
	v := s.v[:len(x)]
	for i, f := range x {
		if magnitude(f) > bound {
			return i
		}
		v[i] += weight * count(f, shift)
	}
	return len(x)
}

// Merge adds another sum of the same scale and length. On an error nothing is added.
func (s *Sum) Merge(o *Sum) error {
	if o.scale != s.scale {
		return fmt.Errorf("%w: the sums have %d and %d fractional bits, or different bounds", ErrShape, s.scale.fraction, o.scale.fraction)
	}
	if len(o.v) != len(s.v) {
		return fmt.Errorf("%w: the other sum has %d numbers, want %d", ErrShape, len(o.v), len(s.v))
	}
	if s.n+o.n > s.scale.updates {
		return fmt.Errorf("%w: cannot merge %d and %d updates", ErrFull, s.n, o.n)
	}
	for i, v := range o.v {
		s.v[i] += v
	}
	s.n += o.n
	s.weight += o.weight
	return nil
}

// Total writes the weighted sum to dst, which must have the length of the vectors.
func (s *Sum) Total(dst []float64) {
	dst = dst[:len(s.v)]
	unit := math.Ldexp(1, -s.scale.fraction)
	for i, v := range s.v {
		dst[i] = float64(v) * unit
	}
}

// Norm returns the Euclidean norm of the weighted sum, and a bound on the error from
// rounding its updates to fixed point.
func (s *Sum) Norm() (norm, rounding float64) {
	unit := math.Ldexp(1, -s.scale.fraction)
	for _, v := range s.v {
		x := float64(v) * unit
		norm += float64(x * x)
	}
	return math.Sqrt(norm), float64(s.weight) * math.Sqrt(float64(len(s.v))) * unit / 2
}

// Largest returns the largest magnitude of a number in the weighted sum, and a bound on the
// error from rounding its updates to fixed point.
func (s *Sum) Largest() (largest, rounding float64) {
	unit := math.Ldexp(1, -s.scale.fraction)
	for _, v := range s.v {
		largest = max(largest, math.Abs(float64(v)))
	}
	return largest * unit, float64(s.weight) * unit / 2
}

// header is the number of bytes before the integers: fraction, updates and weight.
const header = 3 * 8

// Bytes returns the length of MarshalBinary's result for a sum of vectors of the given
// length.
func Bytes(length int) int { return header + 8*length }

// MarshalBinary encodes the sum: fractional bits, updates, weight, then the numbers. All
// are little-endian 64-bit integers.
func (s *Sum) MarshalBinary() ([]byte, error) {
	b := make([]byte, 0, Bytes(len(s.v)))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.scale.fraction))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.n))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.weight))
	for _, v := range s.v {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b, nil
}

// UnmarshalBinary reads what MarshalBinary wrote into a sum with the same scale and length. It
// rejects numbers that are too large to be the sum of updates within the scale's limits. On an
// error the sum is unchanged.
func (s *Sum) UnmarshalBinary(b []byte) error {
	if len(b) != Bytes(len(s.v)) {
		return fmt.Errorf("%w: %d bytes are not a sum of %d numbers", ErrShape, len(b), len(s.v))
	}
	if f := binary.LittleEndian.Uint64(b); f != uint64(s.scale.fraction) {
		return fmt.Errorf("%w: the sum has %d fractional bits, want %d", ErrShape, f, s.scale.fraction)
	}
	n, weight := int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))
	return s.set(n, weight, func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[header+8*i:])) })
}

// set replaces the contents of the sum after making the checks that UnmarshalBinary documents.
func (s *Sum) set(n, weight int64, number func(i int) int64) error {
	if n < 0 || n > s.scale.updates || weight < n || weight > n*s.scale.maxWeight {
		return fmt.Errorf("%w: the scale does not allow %d updates with a total weight of %d", ErrWeight, n, weight)
	}
	limit := weight * s.scale.limit()
	for i := range s.v {
		if v := number(i); v > limit || v < -limit {
			return fmt.Errorf("%w: number %d of a sum with a total weight of %d", ErrBound, i, weight)
		}
	}
	s.n, s.weight = n, weight
	for i := range s.v {
		s.v[i] = number(i)
	}
	return nil
}

// AppendNumbers appends the integers of the sum to v, modulo 2^64. Adding the integers of
// several sums gives the integers of the merged sum.
func (s *Sum) AppendNumbers(v []uint64) []uint64 {
	for _, x := range s.v {
		v = append(v, uint64(x))
	}
	return v
}

// SetNumbers replaces the sum with a sum of n updates with the given total weight. The integers
// come from AppendNumbers, or are sums of such integers modulo 2^64. SetNumbers makes the same
// checks as UnmarshalBinary. On an error the sum is unchanged.
func (s *Sum) SetNumbers(n, weight int64, v []uint64) error {
	if len(v) != len(s.v) {
		return fmt.Errorf("%w: %d numbers, want %d", ErrShape, len(v), len(s.v))
	}
	return s.set(n, weight, func(i int) int64 { return int64(v[i]) })
}

// MaxWeight returns the largest weight of an update.
func (s Scale) MaxWeight() int64 { return s.maxWeight }
