// Package clientopt holds the optimizers that take a client's local steps, a file
// each.
//
// All of them have a Kernel, which must be set: the loops over the weights are its.
// None allocates after its first turn, as long as models do not grow, and none
// remembers anything from one turn to the next but through [fed.Turn]: moments start
// from zero in every round (bose2024, figure 4; bose2023, algorithm 2).
package clientopt

// zeroed returns n zeros, in the memory of buf if there is enough.
func zeroed(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	buf = buf[:n]
	clear(buf)
	return buf
}
