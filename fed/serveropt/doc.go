// Package serveropt contains the optimizers that move the shared weights by the
// displacement from an aggregator, one file each.
//
// State and arithmetic are float64. A weight is rounded to float32 once per step. Products are
// rounded before they are added. An explicit conversion prevents the compiler from fusing a
// multiplication with an addition, so all machines give the same bits.
//
// Displacements must be finite; aggregators check this. Step panics if the number of
// weights differs from the length of the displacement or from the number of weights in the
// previous step. No optimizer is safe for concurrent use.
package serveropt

import "fmt"

func mustMatch(shared []float32, d []float64) {
	if len(shared) != len(d) {
		panic(fmt.Sprintf("serveropt: %d weights and a displacement of %d", len(shared), len(d)))
	}
}

func mustRemember(state, d []float64) {
	if len(state) != len(d) {
		panic(fmt.Sprintf("serveropt: the state is of %d weights, the displacement of %d", len(state), len(d)))
	}
}
