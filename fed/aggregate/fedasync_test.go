package aggregate

import (
	"math"
	"testing"

	"loadstar/fed"
)

// TestAsync mixes the weights of two clients into the shared weights (10, 20), with alpha
// 1/2.
//
//	a is fresh, at (10, 20) + (4, -8) = (14, 12): x = 1/2, phi = (12, 16)
//	b is 2 versions old, at (8, 22) + (2, 2) = (10, 24): x = 1/2 · 1/2 = 1/4,
//	phi = (.75·12 + .25·10, .75·16 + .25·24) = (11.5, 18)
//
// so the displacement is (1.5, -2). If a came second, phi would be (10, 21) and then (12,
// 16.5).
func TestAsync(t *testing.T) {
	shared := []float32{10, 20}
	a, b := update("a", 1, shared, 4, -8), update("b", 3, []float32{8, 22}, 2, 2)
	b.Version = 5
	async := Async{.5, Hinge(.5, 0)}
	wantDisplacement(t, async, newMerge(t, shared, 7, []fed.Received{b, a}, false, 1), 1.5, -2)
	a.Client = "c"
	wantDisplacement(t, async, newMerge(t, shared, 7, []fed.Received{a, b}, false, 1), 2, -3.5)

	// With alpha 1 the new weights are those of the last client.
	wantDisplacement(t, Async{Alpha: 1}, newMerge(t, shared, 7, []fed.Received{a, b}, false, 1), 4, -8)
}

func TestAsyncAlpha(t *testing.T) {
	shared := []float32{0}
	m := newMerge(t, shared, 7, []fed.Received{update("a", 1, shared, 1)}, false, 1)
	for _, alpha := range []float64{0, -.1, 1.1, math.NaN(), math.Inf(1)} {
		if err := (Async{Alpha: alpha}).Aggregate(make([]float64, 1), m); err == nil {
			t.Errorf("alpha %g: no error", alpha)
		}
	}
}
