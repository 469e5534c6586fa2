package nn

import (
	"math"
	"unsafe"
)

// NotFinite returns the index of the first number in x that is not finite, or -1.
func NotFinite(x []float32) int {
	if !suspect(x) {
		return -1
	}
	for i, v := range x {
		if math.Float32bits(v)&exponent == exponent {
			return i
		}
	}
	return -1
}

const exponent = 0x7f800000 // all its bits are set only in NaN and infinity

// suspect reports whether any number in x is not finite. Weights are checked whenever a client
// has trained, so suspect must be fast. It checks two numbers at a time and branches once.
// Adding one to an exponent whose bits are all set causes a carry into the sign bit, which has
// been cleared.
func suspect(x []float32) bool {
	const (
		mask = exponent<<32 | exponent
		one  = 1<<55 | 1<<23
		sign = 1<<63 | 1<<31
	)
	var seen uint64
	if len(x) > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(x)))%8 != 0 {
		seen |= uint64(math.Float32bits(x[0])&exponent) + 1<<23
		x = x[1:]
	}
	var pairs []uint64
	if len(x) >= 2 { // a pointer to eight bytes needs at least eight bytes
		pairs = unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/2)
	}
	for ; len(pairs) >= 4; pairs = pairs[4:] {
		seen |= pairs[0]&mask + one
		seen |= pairs[1]&mask + one
		seen |= pairs[2]&mask + one
		seen |= pairs[3]&mask + one
	}
	for _, p := range pairs {
		seen |= p&mask + one
	}
	if len(x)%2 == 1 {
		seen |= uint64(math.Float32bits(x[len(x)-1])&exponent) + 1<<23
	}
	return seen&sign != 0
}
