package aggregate

import (
	"math"
	"testing"

	"loadstar/fed"
)

// TestPerClient checks three rounds with beta1 = 3/4 and epsilon = 1/2:
//
//	round 1: a moves (2, 0): v_a = 1/4·4 = 1 and 0, terms 2/(1 + 1/2) = 4/3 and 0
//	         b moves (-4, 8): v_b = 4 and 16, terms -4/2.5 = -1.6 and 8/4.5 = 16/9
//	         mean ((4/3 - 1.6)/2, 8/9)
//	round 2: a moves (-1, 2): v_a = 3/4 + 1/4 = 1 and 1, terms -1/1.5 and 2/1.5
//	         b sends no update
//	round 3: b moves (2, 0): v_b = 3 + 1 = 4 and 12, terms 2/2.5 and 0
func TestPerClient(t *testing.T) {
	shared := []float32{9, 9}
	a := &PerClient{Beta1: .75, Epsilon: .5}
	merge := func(updates ...fed.Received) *fed.Merge { return newMerge(t, shared, 7, updates, false, 1) }
	wantDisplacement(t, a, merge(update("a", 1, shared, 2, 0), update("b", 100, shared, -4, 8)), (4./3-1.6)/2, 8./9)
	wantDisplacement(t, a, merge(update("a", 1, shared, -1, 2)), -1/1.5, 2/1.5)
	wantDisplacement(t, a, merge(update("b", 1, shared, 2, 0)), .8, 0)

	// If beta1 and epsilon are 0, only the signs of an update matter, even for the smallest
	// float32.
	wantDisplacement(t, &PerClient{}, merge(update("a", 1, shared, -1e-45, 0)), -1, 0)
}

func TestPerClientSettings(t *testing.T) {
	shared := []float32{0}
	m := newMerge(t, shared, 7, []fed.Received{update("a", 1, shared, 1)}, false, 1)
	for _, a := range []*PerClient{{Beta1: 1}, {Beta1: -.1}, {Beta1: math.NaN()}, {Epsilon: -1}, {Epsilon: math.NaN()}} {
		if err := a.Aggregate(make([]float64, 1), m); err == nil {
			t.Errorf("%+v: no error", a)
		}
	}
}
