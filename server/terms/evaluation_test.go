package terms

import (
	"math"
	"testing"

	v1 "loadstar/proto/loadstar/v1"
)

// TestPlausible checks that an evaluation within the bounds is kept, and that any other
// evaluation is moved to the nearest bound or dropped.
func TestPlausible(t *testing.T) {
	for _, x := range []struct{ clients, sum, n, wantClients, wantSum int64 }{
		{1, 500_000, 1, 1, 500_000},
		{2, 0, 3, 2, 0},
		{2, -1, 3, 2, 0},
		{2, math.MaxInt64, 3, 2, 200e6},
		{2, math.MinInt64, 3, 2, 0},
		{0, 5, 3, 0, 0},
		{4, 5, 3, 0, 0},
		{-1, 5, 3, 0, 0},
		{math.MaxInt64, 5, 3, 0, 0},
	} {
		e := Plausible(&v1.Evaluation{Clients: x.clients, RelativeMae: x.sum}, int(x.n))
		if e.GetClients() != x.wantClients || e.GetRelativeMae() != x.wantSum {
			t.Errorf("%+v: %v", x, e)
		}
	}
	if Plausible(nil, 3) != nil {
		t.Error("an evaluation out of nothing")
	}
}
