package serveropt_test

import (
	"fmt"

	"loadstar/fed/serveropt"
)

// Move the shared weights by the same displacement in two rounds, without and with momentum.
func ExampleMomentum() {
	displacement := []float64{1, -2}
	plain, moved := make([]float32, 2), make([]float32, 2)
	descent := serveropt.Descent{Rate: 1}
	momentum := &serveropt.Momentum{Rate: 1, Beta1: 0.5}
	for range 2 {
		descent.Step(plain, displacement)
		momentum.Step(moved, displacement)
	}
	fmt.Printf("%.1f\n%.1f\n", plain, moved)
	// Output:
	// [2.0 -4.0]
	// [2.5 -5.0]
}
