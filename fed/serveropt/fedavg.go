package serveropt

import "loadstar/fed"

var _ fed.ServerOptimizer = Descent{}

// Descent moves the weights along the displacement (FedAvg: reddi2021, algorithm 1
// with SGD as the server optimizer; bose2023, algorithm 1, line 21):
//
//	phi += Rate D
//
// At rate 1, with the mean of the updates, the new weights are the mean of the clients'
// weights.
//
// Deviations: the sign. In bose2023, clients send the weights before training minus those after
// it, and the server subtracts.
type Descent struct {
	Rate float64
}

// Step implements [fed.ServerOptimizer].
func (o Descent) Step(shared []float32, d []float64) {
	mustMatch(shared, d)
	for i, x := range d {
		shared[i] = float32(float64(shared[i]) + float64(o.Rate*x))
	}
}
