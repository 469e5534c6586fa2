package quality_test

import (
	"fmt"
	"log"
	"math"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
)

// This example checks a meter that has no readings for two days.
func ExampleChecker() {
	load := make([]float32, 90*24)
	for i := range load {
		load[i] = float32(10 + i%24 + i%7)
		if day := i / 24; day == 30 || day == 31 {
			load[i] = float32(math.NaN())
		}
	}
	start := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	meter := series.Meter{ID: "office", Start: start.Unix(), Load: load}
	d, err := series.NewDataset(series.Dataset{Name: "demo", Interval: time.Hour, Clock: time.UTC}, []series.Meter{meter})
	if err != nil {
		log.Fatal(err)
	}
	checker, err := quality.NewChecker(d, quality.Plan{Lookback: 24, Horizon: 1, MinDays: 28, Cells: 10})
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range checker.Meter(0).Findings {
		fmt.Printf("%s %s: %s\n", f.Severity, f.Code, f.Message)
	}
	// Output:
	// info gaps: 2.2 % of the steps are missing, in 1 gap; the longest is 2 days from 2024-01-31 00:00.
	// info under-a-year: The readings cover 88 days, less than a year.
}
