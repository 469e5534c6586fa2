// Package serveropt holds the optimizers that move the shared weights by the
// displacement which an aggregator made, a file each.
//
// State is float64, and so is the arithmetic: a weight is rounded to float32 once a
// step. Products are rounded before they are added, by a conversion where the
// compiler might fuse the two, so that the bits are those of any other machine.
//
// All treat the displacement as finite, which aggregators make sure of, and panic if
// the weights are not as many as the displacements or as in the step before. None is
// safe for concurrent use.
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
