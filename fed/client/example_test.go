package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Train one client for one round. Its personal layers stay in Kept; the update contains only
// the shared layers.
func ExampleWorker_Train() {
	load := make([]float32, 20*24)
	for i := range load {
		load[i] = float32(1 + i%24)
	}
	meter := series.Meter{ID: "house", Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), Load: load}
	d, err := series.NewDataset(series.Dataset{Name: "demo", Interval: time.Hour, Clock: time.UTC}, []series.Meter{meter})
	if err != nil {
		log.Fatal(err)
	}
	plan, err := recipe.Read([]byte("name: demo\nalgorithm: fedavg\npartition: head\nmodel: {inputs: [load, hour]}\nclient: {steps: 3, batch: 16}\n"))
	if err != nil {
		log.Fatal(err)
	}
	problem, err := recipe.Frame(plan, d)
	if err != nil {
		log.Fatal(err)
	}
	parts, err := recipe.Compose(plan, d.Len())
	if err != nil {
		log.Fatal(err)
	}
	kernels, err := kernel.Default()
	if err != nil {
		log.Fatal(err)
	}
	job := &client.Job{
		Seed: plan.Seed, Draws: fed.Seeded(plan.Seed), Model: problem.Model, Partition: problem.Partition, Loss: problem.Loss,
		Targets: plan.Model.Targets.Steps(), Batch: plan.Client.Batch, Needs: parts.Needs,
	}
	worker := client.NewWorker(job, kernels, parts.NewTrainer(kernels))
	shared := make([]float32, problem.Partition.SharedLen())
	personal := make([]float32, worker.Kept())
	problem.Partition.Cut(problem.Model.InitialWeights(plan.Seed), shared, personal[:problem.Partition.PersonalLen()])

	windows := problem.Framer.Windows(meter, problem.Framer.Ranges(meter))
	c := &client.Client{ID: "house", Data: []series.Examples{windows}, Kept: personal, First: true}
	var update fed.Update
	if err := worker.Train(context.Background(), c, fed.Task{Shared: shared}, &update); err != nil {
		log.Fatal(err)
	}
	fmt.Println(update.Steps, "steps; the update has all shared weights:", len(update.Delta) == len(shared))
	// Output:
	// 3 steps; the update has all shared weights: true
}
