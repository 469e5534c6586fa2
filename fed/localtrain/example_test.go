package localtrain_test

import (
	"context"
	"fmt"
	"log"

	"loadstar/fed"
	"loadstar/fed/clientopt"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

// distances is a fed.Objective: the mean squared distance of one weight from the examples.
type distances []float32

func (d distances) Len() int { return len(d) }

func (d distances) Gradient(g, w []float32, examples []int) float64 {
	g[0] = 0
	for _, i := range examples {
		g[0] += 2 * (w[0] - d[i]) / float32(len(examples))
	}
	return d.Loss(w, examples)
}

func (d distances) Loss(w []float32, examples []int) float64 {
	sum := 0.0
	for _, i := range examples {
		sum += float64((w[0] - d[i]) * (w[0] - d[i]))
	}
	return sum / float64(len(examples))
}

// Train a client for 20 steps, as in FedAvg.
func ExampleDescent() {
	kernels, err := kernel.Default()
	if err != nil {
		log.Fatal(err)
	}
	trainer := &localtrain.Descent{
		Work:      localtrain.Work{Batch: 3, Steps: 20},
		Optimizer: &clientopt.SGD{Kernel: kernels, Rate: clientopt.Rate{Base: 0.25}},
	}
	turn := &fed.Turn{
		Task: fed.Task{Shared: []float32{0}}, W: []float32{0}, Shared: []fed.Span{{Lo: 0, Hi: 1}},
		Rand: fed.Rand(1, "batches", 0, "house"),
	}
	trained, err := trainer.Train(context.Background(), distances{1, 2, 6}, turn)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d steps, weight %.2f\n", trained.Steps, turn.W[0])
	// Output:
	// 20 steps, weight 3.00
}
