package metric_test

import (
	"fmt"
	"log"

	"loadstar/metric"
)

// Score three forecasts. The relative MAE compares them with a reference, here the last
// known value.
func ExamplePoint() {
	var p metric.Point
	for _, f := range []struct{ forecast, actual, last float64 }{{2, 3, 1}, {4, 3, 3}, {5, 5, 3}} {
		if err := p.Add(f.forecast, f.actual, f.last); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("MAE %.2f, RMSE %.2f, relative MAE %.2f\n", p.MAE(), p.RMSE(), p.RelativeMAE())
	// Output:
	// MAE 0.67, RMSE 0.82, relative MAE 0.50
}

// Summarise one metric over the clients of a fleet.
func ExampleNewSpread() {
	s := metric.NewSpread([]float64{0.8, 0.9, 1.3, 0.7})
	fmt.Printf("median %.2f, worst %.2f of %d clients\n", s.Median, s.Max, s.Count)
	// Output:
	// median 0.85, worst 1.30 of 4 clients
}
