// Package clientopt has the optimizers for a client's local steps, one file each.
//
// Every optimizer has a Kernel, which must be set; it runs the loops over the weights. No
// optimizer allocates memory after its first turn unless the model grows. An optimizer
// keeps no state from one turn to the next except through [fed.Turn]. Moments start from
// zero in every round (bose2024, figure 4; bose2023, algorithm 2).
package clientopt

// zeroed returns n zeros and reuses buf if it is large enough.
func zeroed(buf []float32, n int) []float32 {
	if cap(buf) < n {
		return make([]float32, n)
	}
	buf = buf[:n]
	clear(buf)
	return buf
}
