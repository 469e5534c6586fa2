// Package clientopt contains the optimizers for a client's local steps, one file each.
//
// The field Kernel of an optimizer must be set, because it runs the loops over the weights. No
// optimizer allocates memory after its first turn unless a later model is larger. Only the
// Kept field of [fed.Turn] passes state from one turn to the next. Unless [Moments] says
// otherwise, moments start from zero in every round (bose2024, figure 4; bose2023,
// algorithm 2).
package clientopt

// zeroed returns a slice of n zeros. It reuses buf if buf is large enough.
func zeroed(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	buf = buf[:n]
	clear(buf)
	return buf
}
