package clientopt_test

import (
	"fmt"
	"log"

	"loadstar/fed"
	"loadstar/fed/clientopt"
	"loadstar/nn/kernel"
)

// Take one step of SGD in round 500, after the learning rate has dropped once.
func ExampleSGD() {
	kernels, err := kernel.Default()
	if err != nil {
		log.Fatal(err)
	}
	o := &clientopt.SGD{Kernel: kernels, Rate: clientopt.Rate{Base: 0.5, Factor: 0.1, Every: 500}}
	turn := &fed.Turn{Task: fed.Task{Round: 500}}
	w, g := []float32{1, 2}, []float32{10, -10}
	o.Begin(turn)
	o.Step(w, g)
	o.End(turn)
	fmt.Printf("%.2f\n", w)
	// Output:
	// [0.50 2.50]
}
