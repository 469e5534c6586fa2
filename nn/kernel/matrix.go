package kernel

import "fmt"

// Start selects the initial value to which a matrix product is added.
type Start struct {
	bias       []float32
	accumulate bool
}

// Zero adds a product to zero, so the destination is overwritten.
func Zero() Start { return Start{} }

// Accumulate adds a product to the destination.
func Accumulate() Start { return Start{accumulate: true} }

// Bias adds row i of a product to b[i] and overwrites the destination.
func Bias(b []float32) Start { return Start{bias: b} }

// mulDepth is the number of rows of B that MatMul multiplies by all rows of A before it
// continues with the next rows of B. With AVX-512's panels of 64 columns, these rows take 24 kB
// and stay in a first-level cache of 32 kB.
const mulDepth = 96

// MatMul computes C = start + A·B, with C of m×n, A of m×k and B of k×n. Element (i, l) of A is
// a[i*rs+l*cs], so (rs, cs) = (lda, 1) uses A as stored, and (1, lda) uses its transpose.
func (s *Set) MatMul(m, n, k int, a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc int, start Start) {
	if m <= 0 || n <= 0 {
		return
	}
	checkMatrix("C", c, m, n, ldc, 1)
	if k > 0 {
		checkMatrix("A", a, m, k, rs, cs)
		checkMatrix("B", b, k, n, ldb, 1)
	}
	if start.bias != nil && len(start.bias) < m {
		panic(fmt.Sprintf("kernel: %d biases for %d rows", len(start.bias), m))
	}
	switch {
	case s.asm.lanes == 0 || k <= 0:
		mulPortable(m, n, k, a, rs, cs, b, ldb, c, ldc, start)
	case n == 1 && cs == 1 && ldb == 1 && ldc == 1:
		s.matVec(m, k, a, rs, b, c, start)
	default:
		s.mulPanels(m, n, k, a, rs, cs, b, ldb, c, ldc, start)
	}
}

func (s *Set) mulPanels(m, n, k int, a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc int, start Start) {
	tail := n % s.asm.lanes
	if tail > 0 && s.asm.mulTail == nil {
		whole := n - tail
		mulPortable(m, tail, k, a, rs, cs, b[whole:], ldb, c[whole:], ldc, start)
		n, tail = whole, 0
	}
	for k0 := 0; k0 < k; k0 += mulDepth {
		depth := min(mulDepth, k-k0)
		var accumulate uintptr
		if start.accumulate {
			accumulate = 1
		}
		for j := 0; j < n; {
			tiles, cols := s.asm.mulTail, tail
			if vecs := min(len(s.asm.mul)-1, (n-j)/s.asm.lanes); vecs > 0 {
				tiles, cols = s.asm.mul[vecs], vecs*s.asm.lanes
			}
			for i := 0; i < m; {
				rows, blocks := split(m-i, len(tiles))
				var bias *float32
				if start.bias != nil {
					bias = &start.bias[i]
				}
				tiles[rows-1](&c[i*ldc+j], bytes(ldc), &a[i*rs+k0*cs], bytes(rs), bytes(cs), &b[k0*ldb+j], bytes(ldb), uintptr(depth), bias, accumulate, uintptr(blocks), uintptr(tail))
				i += rows * blocks
			}
			j += cols
		}
		start = Accumulate()
	}
}

// matVec multiplies A by a vector. It computes the dot products of x with the rows of A,
// which are contiguous.
func (s *Set) matVec(m, k int, a []float32, lda int, x, y []float32, start Start) {
	if start.bias != nil {
		copy(y[:m], start.bias)
		start = Accumulate()
	}
	s.MatMulT(1, m, k, 1, x, k, 0, a, lda, 0, y, m, start.accumulate)
}

// MatMulT computes Σ A·Bᵀ and writes it to C, or adds it to C. C is m×n, A is m×k and B is
// n×k. The sum is over segs pairs of such matrices; consecutive matrices are aseg floats
// apart in a and bseg floats apart in b.
func (s *Set) MatMulT(m, n, k, segs int, a []float32, lda, aseg int, b []float32, ldb, bseg int, c []float32, ldc int, accumulate bool) {
	if m <= 0 || n <= 0 {
		return
	}
	checkMatrix("C", c, m, n, ldc, 1)
	if k > 0 && segs > 0 {
		checkMatrix("A", a[max(segs-1, 0)*aseg:], m, k, lda, 1)
		checkMatrix("B", b[max(segs-1, 0)*bseg:], n, k, ldb, 1)
	} else {
		k, segs = 0, 0
	}
	if s.asm.lanes == 0 || segs == 0 {
		dotPortable(m, n, k, segs, a, lda, aseg, b, ldb, bseg, c, ldc, accumulate)
		return
	}
	var acc uintptr
	if accumulate {
		acc = 1
	}
	for i := 0; i < m; {
		rows, blocks := split(m-i, len(s.asm.dot[4]))
		for range blocks {
			for j := 0; j < n; {
				cols := s.dotCols(n-j, rows)
				s.asm.dot[cols][rows-1](&c[i*ldc+j], bytes(ldc), &a[i*lda], bytes(lda), bytes(aseg), &b[j*ldb], bytes(ldb), bytes(bseg), uintptr(k), uintptr(segs), acc, uintptr((n-j)/cols))
				j += (n - j) / cols * cols
			}
			i += rows
		}
	}
}

// dotCols returns the number of columns of the widest dot tile that has the given number of
// rows and at most n columns.
func (s *Set) dotCols(n, rows int) int {
	for cols := min(n, len(s.asm.dot)-1); cols > 1; cols-- {
		if rows <= len(s.asm.dot[cols]) {
			return cols
		}
	}
	return 1
}

// split divides m rows into tiles of nearly equal height, at most limit rows each. It
// returns the height of the first tiles, and the number of tiles with that height.
func split(m, limit int) (rows, blocks int) {
	if m <= limit {
		return m, 1 // a shortcut that avoids two divisions
	}
	tiles := (m + limit - 1) / limit
	rows = (m + tiles - 1) / tiles
	return rows, tiles - (rows*tiles - m)
}

func bytes(floats int) uintptr { return uintptr(floats) * 4 }

// Transpose writes the transpose of src to dst. src is rows×cols with row stride lds, and
// dst has row stride ldd.
func (s *Set) Transpose(rows, cols int, src []float32, lds int, dst []float32, ldd int) {
	if rows <= 0 || cols <= 0 {
		return
	}
	checkMatrix("source", src, rows, cols, lds, 1)
	checkMatrix("destination", dst, cols, rows, ldd, 1)
	if s.asm.transpose == nil || rows < 8 || cols < 8 {
		transposePortable(rows, cols, src, lds, dst, ldd)
		return
	}
	// If 8 does not divide a size, the last block overlaps the previous one.
	block := func(i, j, blocks int) {
		s.asm.transpose(&dst[j*ldd+i], bytes(ldd), &src[i*lds+j], bytes(lds), uintptr(blocks))
	}
	for i := 0; i < rows; i += 8 {
		i = min(i, rows-8)
		block(i, 0, cols/8)
		if cols%8 != 0 {
			block(i, cols-8, 1)
		}
	}
}

// checkMatrix panics unless x contains element (rows-1, cols-1).
func checkMatrix(name string, x []float32, rows, cols, rs, cs int) {
	if rs < 0 || cs < 0 || (rows-1)*rs+(cols-1)*cs >= len(x) {
		panic(fmt.Sprintf("kernel: %s holds %d floats, too few for %d×%d with strides %d and %d", name, len(x), rows, cols, rs, cs))
	}
}
