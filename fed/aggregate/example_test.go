package aggregate_test

import (
	"fmt"
	"log"

	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/exact"
)

// Average the updates of two clients, weighted by their numbers of examples.
func ExampleMean() {
	scale, err := exact.NewScale(10, 300, 2)
	if err != nil {
		log.Fatal(err)
	}
	sum := exact.NewSum(scale, 2)
	for _, u := range []struct {
		examples int64
		delta    []float32
	}{{100, []float32{1, 0}}, {300, []float32{2, 4}}} {
		if err := sum.Add(u.examples, u.delta); err != nil {
			log.Fatal(err)
		}
	}
	displacement := make([]float64, 2)
	merge := &fed.Merge{Shared: []float32{0, 0}, Fleet: 2, Sums: []fed.Sums{{Delta: sum}}}
	if err := (aggregate.Mean{}).Aggregate(displacement, merge); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f\n", displacement)
	// Output:
	// [1.75 3.00]
}
