package nn_test

import (
	"fmt"
	"log"
	"math/rand/v2"

	"loadstar/nn"
	"loadstar/nn/kernel"
)

// This example builds a small forecaster and lists its layers.
func ExampleBuild() {
	net, err := nn.Build(
		24, 3, // 24 steps of 3 features
		nn.LSTM{Name: "lstm", Hidden: 8, Last: true},
		nn.Linear{Name: "head", Out: 1},
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range net.Layers() {
		fmt.Printf("%s: %d weights\n", l.Name, l.Len())
	}
	fmt.Println("total:", net.Weights())
	// Output:
	// lstm_l0: 416 weights
	// head: 9 weights
	// total: 425
}

// This example fits y = 2x + 1 by gradient descent.
func ExampleWorkspace_Gradient() {
	kernels, err := kernel.Default()
	if err != nil {
		log.Fatal(err)
	}
	net, err := nn.Build(1, 1, nn.Linear{Name: "line", Out: 1})
	if err != nil {
		log.Fatal(err)
	}
	w, g := make([]float32, net.Weights()), make([]float32, net.Weights())
	net.Init(w, rand.New(rand.NewPCG(1, 2)))
	x, y := []float32{0, 1, 2, 3}, []float32{1, 3, 5, 7}
	ws := net.NewWorkspace(kernels, len(x))
	for range 1000 {
		ws.Gradient(g, w, x, y, nn.MSE{})
		for i := range w {
			w[i] -= 0.1 * g[i]
		}
	}
	fmt.Printf("slope %.2f, intercept %.2f\n", w[0], w[1])
	// Output:
	// slope 2.00, intercept 1.00
}
