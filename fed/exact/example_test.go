package exact_test

import (
	"fmt"
	"log"

	"loadstar/fed/exact"
)

// Add updates in two orders. The sums are equal bit for bit, unlike float sums.
func ExampleSum() {
	scale, err := exact.NewScale(100, 10, 3) // numbers within ±100, weights up to 10, 3 updates
	if err != nil {
		log.Fatal(err)
	}
	updates := [][]float32{{0.1, 100}, {0.2, -100}, {0.3, 1e-5}}
	total := func(order ...int) []float64 {
		sum := exact.NewSum(scale, 2)
		for _, i := range order {
			if err := sum.Add(10, updates[i]); err != nil {
				log.Fatal(err)
			}
		}
		out := make([]float64, 2)
		sum.Total(out)
		return out
	}
	a, b := total(0, 1, 2), total(2, 1, 0)
	fmt.Printf("%.4f %.4f %t\n", a[0], a[1], a[0] == b[0] && a[1] == b[1])
	// Output:
	// 6.0000 0.0001 true
}
