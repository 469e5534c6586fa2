package sim_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"loadstar/fed/recipe"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Simulate two rounds of FedAvg on a fleet of four meters.
func ExampleRun() {
	var meters []series.Meter
	for k := range 4 {
		load := make([]float32, 20*24)
		for i := range load {
			load[i] = float32(1 + k + i%24)
		}
		meters = append(meters, series.Meter{ID: fmt.Sprint("house-", k), Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), Load: load})
	}
	d, err := series.NewDataset(series.Dataset{Name: "demo", Interval: time.Hour, Clock: time.UTC}, meters)
	if err != nil {
		log.Fatal(err)
	}
	plan, err := recipe.Read([]byte("name: demo\nalgorithm: fedavg\nrounds: 2\nmodel: {inputs: [load, hour]}\nclient: {steps: 3, batch: 16}\nevaluate: {every: 0}\n"))
	if err != nil {
		log.Fatal(err)
	}
	kernels, err := kernel.Default()
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "runs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	summary, err := sim.Run(context.Background(), sim.Config{
		Plan: plan, Dataset: d, Dir: filepath.Join(dir, "demo"), Kernel: kernels, Workers: 2, Memory: 1 << 20,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(summary.Rounds, "rounds,", summary.Clients, "clients,", summary.Steps, "steps")
	// Output:
	// 2 rounds, 4 clients, 24 steps
}
