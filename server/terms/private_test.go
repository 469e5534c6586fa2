package terms

import (
	"errors"
	"math"
	"testing"

	"loadstar/fed"
	"loadstar/fed/round"
)

// TestLongUnmaskedSum checks that an unmasked sum is refused if its norm is larger than keepers
// accept for its clients, even if each number is within the bound, and that the sum is accepted
// without limits.
func TestLongUnmaskedSum(t *testing.T) {
	x, err := Read("algorithm: fedavg\nserver: {bound: 2}\nschedule: {cohort: 5, deadline: 12h}\nprivacy: {mode: private, keepers: [auditor], least: 2, check: none}\n"+small, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	const clients = 5
	limits := fed.Limits{Norm: 0.25, Examples: 1}
	// unmasked decodes the sum of clients' updates whose norm is at the limit, times a factor.
	unmasked := func(limits fed.Limits, times float64) error {
		f, sizes := round.NewFold(x.Rules), &round.Sizes{}
		for range clients {
			u := &fed.Update{Version: 2, Examples: 1, Claimed: 1, Steps: 2, Delta: make([]float32, x.Shared), Norm: 0.25}
			for i := range u.Delta {
				u.Delta[i] = float32(times * 0.25 / math.Sqrt(float64(x.Shared)))
			}
			if err := f.Add(u, make([]float32, x.Shared)); err != nil {
				t.Fatal(err)
			}
			sizes.Add(u)
		}
		sum, err := x.Rules.Vector(x.Shared).Encode(f, sizes)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = x.Unmasked(2, clients, limits, sum)
		return err
	}
	for times, refused := range map[float64]bool{1: false, 1.45: false, 1.55: true, 3: true} {
		if err := unmasked(limits, times); errors.Is(err, ErrSum) != refused || !refused && err != nil {
			t.Errorf("a sum of %g limits: %v", times, err)
		}
	}
	if err := unmasked(fed.Limits{}, 3); err != nil {
		t.Errorf("without limits: %v", err)
	}
}
