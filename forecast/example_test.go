package forecast_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"loadstar/forecast"
	"loadstar/series"
)

// Backtest two baselines on a meter whose load repeats every day.
func ExampleBacktest() {
	load := make([]float32, 30*24)
	for i := range load {
		load[i] = float32(1 + i%24)
	}
	meter := series.Meter{ID: "house", Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), Load: load}
	d, err := series.NewDataset(series.Dataset{Name: "demo", Interval: time.Hour, Clock: time.UTC}, []series.Meter{meter})
	if err != nil {
		log.Fatal(err)
	}
	b := forecast.Backtest{Dataset: d, Horizon: 1, Targets: 1, Split: series.DefaultSplit, Part: series.Test}
	for _, baseline := range []string{"persistence", "naive-day"} {
		scores, err := b.Run(context.Background(), baseline, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: MAE %.2f kW\n", baseline, scores[0].Overall.MAE())
	}
	// Output:
	// persistence: MAE 1.92 kW
	// naive-day: MAE 0.00 kW
}

// Split a model into shared and personal layers.
func ExampleModel_Partition() {
	m, err := forecast.New("bose2023", forecast.Shape{Inputs: 2})
	if err != nil {
		log.Fatal(err)
	}
	p, err := m.Partition("head")
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range p.Shared() {
		fmt.Println("shared:", l.Name)
	}
	for _, l := range p.Personal() {
		fmt.Println("personal:", l.Name)
	}
	// Output:
	// shared: lstm_l0
	// shared: lstm_l1
	// personal: fc.0
	// personal: fc.1
	// personal: fc.2
	// personal: fc.3
	// personal: fc.4
}
