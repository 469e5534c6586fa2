package nn_test

import (
	"math"
	"testing"

	"loadstar/nn"
)

func TestNotFinite(t *testing.T) {
	bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0xffc00001)}
	fine := []float32{0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32}
	all := make([]float32, 40)
	for from := range 3 { // includes pairs that are not aligned
		for n := range 30 {
			x := all[from : from+n]
			for i := range x {
				x[i] = fine[(i+n)%len(fine)]
			}
			if got := nn.NotFinite(x); got != -1 {
				t.Fatalf("%d numbers at %d: number %d is %g", n, from, got, x[got])
			}
			for i := range x {
				for _, b := range bad {
					was := x[i]
					x[i] = b
					if got := nn.NotFinite(x); got != i {
						t.Fatalf("%d numbers at %d: %g at %d was found at %d", n, from, b, i, got)
					}
					x[i] = was
				}
			}
		}
	}
	// This is the last number of an allocation. The pointer checks of -race fail if
	// NotFinite reads beyond it.
	last := make([]float32, 41_861)[41_860:]
	if got := nn.NotFinite(last); got != -1 {
		t.Errorf("number %d of one is %g", got, last[got])
	}
}

func BenchmarkNotFinite(b *testing.B) {
	x := make([]float32, 42181)
	for b.Loop() {
		nn.NotFinite(x)
	}
}
