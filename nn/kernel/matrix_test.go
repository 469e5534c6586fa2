package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// matMulCase compares one result of MatMul with float64 arithmetic.
func matMulCase(t *testing.T, s *Set, rng *rand.Rand, m, n, k int, transposed bool, start int, kind flavour) {
	t.Helper()
	rs, cs := k+rng.IntN(3), 1
	if transposed {
		rs, cs = 1, m+rng.IntN(3)
	}
	ldb, ldc := n+rng.IntN(3), n+rng.IntN(3)
	if n == 1 && rng.IntN(2) == 0 {
		ldb, ldc = 1, 1 // a vector, which has its own code path
	}
	a := fill(rng, guarded(t, extent(m, k, rs, cs)), kind)
	b := fill(rng, guarded(t, extent(k, n, ldb, 1)), kind)
	c := fill(rng, guarded(t, extent(m, n, ldc, 1)), kind)
	bias := fill(rng, guarded(t, m), kind)
	before := clone(c)
	from := []Start{Zero(), Accumulate(), Bias(bias)}[start]
	s.MatMul(m, n, k, a, rs, cs, b, ldb, c, ldc, from)
	what := fmt.Sprintf("MatMul(%d,%d,%d,transposed=%v,start=%d,%s)", m, n, k, transposed, start, kind)
	checkProduct(t, what, c, before, n, ldc, func(i, j int) (sum, size float64) {
		switch start {
		case 1:
			sum = float64(before[i*ldc+j])
		case 2:
			sum = float64(bias[i])
		}
		size = math.Abs(sum)
		for l := range k {
			p := float64(a[i*rs+l*cs]) * float64(b[l*ldb+j])
			sum += p
			size += math.Abs(p)
		}
		return sum, size
	})
}

func matMulTCase(t *testing.T, s *Set, rng *rand.Rand, m, n, k, segs int, accumulate bool, kind flavour) {
	t.Helper()
	lda, ldb, ldc := k+rng.IntN(3), k+rng.IntN(3), n+rng.IntN(3)
	aseg, bseg := m*lda, n*ldb*rng.IntN(2)
	a := fill(rng, guarded(t, max(segs-1, 0)*aseg+extent(m, k, lda, 1)), kind)
	b := fill(rng, guarded(t, max(segs-1, 0)*bseg+extent(n, k, ldb, 1)), kind)
	c := fill(rng, guarded(t, extent(m, n, ldc, 1)), kind)
	before := clone(c)
	s.MatMulT(m, n, k, segs, a, lda, aseg, b, ldb, bseg, c, ldc, accumulate)
	what := fmt.Sprintf("MatMulT(%d,%d,%d,segs=%d,accumulate=%v,%s)", m, n, k, segs, accumulate, kind)
	checkProduct(t, what, c, before, n, ldc, func(i, j int) (sum, size float64) {
		if accumulate {
			sum = float64(before[i*ldc+j])
		}
		size = math.Abs(sum)
		for g := range segs {
			for l := range k {
				p := float64(a[g*aseg+i*lda+l]) * float64(b[g*bseg+j*ldb+l])
				sum += p
				size += math.Abs(p)
			}
		}
		return sum, size
	})
}

// extent returns the number of floats from the first to the last element of a matrix.
func extent(rows, cols, rs, cs int) int {
	if rows == 0 || cols == 0 {
		return 0
	}
	return (rows-1)*rs + (cols-1)*cs + 1
}

// checkProduct compares the elements of C with values computed in float64, and checks that the
// gaps between its rows are unchanged.
func checkProduct(t *testing.T, what string, c, before []float32, n, ldc int, element func(i, j int) (sum, size float64)) {
	t.Helper()
	for at, got := range c {
		i, j := at/ldc, at%ldc
		if j >= n {
			if math.Float32bits(got) != math.Float32bits(before[at]) {
				t.Fatalf("%s wrote between its rows, at %d", what, at)
			}
			continue
		}
		sum, size := element(i, j)
		if finite(sum) != finite(float64(got)) || finite(sum) && math.Abs(float64(got)-sum) > 1e-6*size+1e-37 {
			t.Fatalf("%s: C[%d,%d] = %g, want %g", what, i, j, got, sum)
		}
	}
}

func TestMatMul(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, m := range []int{0, 1, 2, 5, 6, 7, 13, 25} {
			for _, n := range append([]int{0}, sizes...) {
				for _, k := range []int{0, 1, 8, 20, 97, 200} {
					matMulCase(t, s, rng, m, n, k, rng.IntN(2) == 0, rng.IntN(3), flavours[rng.IntN(len(flavours))])
				}
			}
		}
	})
}

func TestMatMulT(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, m := range []int{0, 1, 2, 3, 6, 7, 20} {
			for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 9, 20} {
				for _, k := range append([]int{0}, sizes...) {
					matMulTCase(t, s, rng, m, n, k, rng.IntN(4), rng.IntN(2) == 0, flavours[rng.IntN(len(flavours))])
				}
			}
		}
	})
}

func TestTranspose(t *testing.T) {
	forEachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(7, 8))
		for _, rows := range append([]int{0}, sizes...) {
			for _, cols := range append([]int{0}, sizes...) {
				lds, ldd := cols+rng.IntN(3), rows+rng.IntN(3)
				src := fill(rng, guarded(t, extent(rows, cols, lds, 1)), "normal")
				dst := fill(rng, guarded(t, extent(cols, rows, ldd, 1)), "normal")
				want := clone(dst)
				for i := range rows {
					for j := range cols {
						want[j*ldd+i] = src[i*lds+j]
					}
				}
				s.Transpose(rows, cols, src, lds, dst, ldd)
				near(t, fmt.Sprintf("Transpose(%d,%d)", rows, cols), dst, want, func(int) float64 { return 0 })
			}
		}
	})
}

func FuzzMatMul(f *testing.F) {
	f.Add(uint64(1), uint8(6), uint8(64), uint8(20))
	f.Add(uint64(2), uint8(1), uint8(1), uint8(0))
	f.Fuzz(func(t *testing.T, seed uint64, m, n, k uint8) {
		for _, s := range Available() {
			rng := rand.New(rand.NewPCG(seed, 0))
			kind := flavours[rng.IntN(len(flavours))]
			matMulCase(t, s, rng, int(m), int(n), int(k), rng.IntN(2) == 0, rng.IntN(3), kind)
			matMulTCase(t, s, rng, int(m), int(n), int(k), rng.IntN(4), rng.IntN(2) == 0, kind)
		}
	})
}
