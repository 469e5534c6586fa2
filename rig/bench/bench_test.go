package bench

import (
	"math"
	"testing"

	"loadstar/nn/kernel"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		x    []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{4, 1}, 2.5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := Median(c.x); got != c.want {
			t.Errorf("the median of %v is %g, want %g", c.x, got, c.want)
		}
	}
}

// TestWorkload checks that training reduces the loss on the workload's one batch.
func TestWorkload(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWorkload(k, Model)
	if err != nil {
		t.Fatal(err)
	}
	loss := func() float64 {
		out := make([]float32, Batch)
		w.ws.Predict(out, w.w, w.X)
		sum := 0.0
		for i, y := range out {
			sum += math.Pow(float64(y-w.Y[i]), 2)
		}
		return sum / Batch
	}
	before := loss()
	for range 50 {
		w.Train()
	}
	if after := loss(); !(after < 0.9*before) {
		t.Errorf("50 steps changed the loss from %g to %g", before, after)
	}
	w.Infer(1)
	one := w.outputs[0]
	w.Infer(256)
	if d := math.Abs(float64(one - w.outputs[0])); !(d < 1e-4) {
		t.Errorf("the same window is forecast as %g alone and as %g in a batch", one, w.outputs[0])
	}
}

func TestRandomFleet(t *testing.T) {
	d, err := RandomFleet(2)
	if err != nil {
		t.Fatal(err)
	}
	if d.Len() != 2 || len(d.Meter(1).Load) != 8760 || !d.Generated {
		t.Errorf("%d meters, %d readings, generated %v", d.Len(), len(d.Meter(1).Load), d.Generated)
	}
}
