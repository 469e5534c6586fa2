package setup

import (
	"loadstar/fed"
	"loadstar/fed/recipe"
)

// HeldOut is the purpose of [Deal] for the clients that a plan holds out.
const HeldOut = "holdout"

// Deal chooses a random share of n clients, which are numbered in the order of their names, and
// returns true for the chosen clients. The choice depends on the seed and on the purpose. The
// simulator and the fleet both call it.
func Deal(seed uint64, purpose string, share float64, n int) []bool {
	chosen := make([]bool, n)
	for _, i := range fed.Rand(seed, purpose, 0, "").Perm(n)[:recipe.Dealt(share, n)] {
		chosen[i] = true
	}
	return chosen
}
