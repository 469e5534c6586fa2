package client

import (
	"math"
	"slices"
	"testing"

	"loadstar/fed"
)

// TestLossOfWeights checks which weights the loss in an update refers to: fekri2023's equation
// 2 uses the loss of the received weights, and its equation 1b uses the loss of the trained
// weights.
func TestLossOfWeights(t *testing.T) {
	for _, of := range []string{"received", "trained"} {
		x := newFixture(t, small("fednorm", "partition: head, server: {loss: "+of+"}"), homes(t, 2))
		c, shared := x.client(1, x.initial)
		u := x.train(t, c, x.task(0, shared))
		weights := x.initial
		if of == "trained" {
			weights = x.worker.Weights()
			if slices.Equal(weights, x.initial) {
				t.Fatal("training changed nothing")
			}
		}
		// The mean over all examples, one at a time.
		o := newObjective(x.job.Model, kernels(t), x.job.Loss, x.job.Targets, x.job.Batch)
		o.setData(x.data[1:2])
		want := 0.0
		for e := range o.Len() {
			want += o.Loss(weights, []int{e}) / float64(o.Len())
		}
		if !(math.Abs(u.Loss-want) <= 1e-6*want) {
			t.Errorf("%s: the loss is %v, want %v", of, u.Loss, want)
		}
	}
	x := newFixture(t, small("fedavg", ""), homes(t, 1))
	if c, shared := x.client(0, x.initial); x.train(t, c, fed.Task{Shared: shared}).Loss != 0 {
		t.Error("an update has a loss that nobody needs")
	}
}
