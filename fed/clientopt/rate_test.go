package clientopt

import (
	"math"
	"testing"

	"loadstar/fed"
)

func TestRate(t *testing.T) {
	stairs := Rate{Base: 0.5, Factor: 0.1, Every: 500}
	for _, c := range []struct {
		rate  Rate
		round int
		want  float64
	}{
		{Rate{Base: 0.5}, 0, 0.5},
		{Rate{Base: 0.5}, 100000, 0.5},
		{Rate{Base: 0.5, Factor: 0.1}, 7, 0.5}, // Every 0: constant
		{stairs, 0, 0.5},
		{stairs, 499, 0.5},
		{stairs, 500, 0.05},
		{stairs, 999, 0.05},
		{stairs, 1000, 0.005},
	} {
		if got := c.rate.At(c.round); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("%+v in round %d is %v, want %v", c.rate, c.round, got, c.want)
		}
	}
}

// Every optimizer uses the round's learning rate. The test leaves out Prox, which has no
// rate of its own.
func TestRateDependsOnRound(t *testing.T) {
	k, stairs := kernels(t), Rate{Base: 1, Factor: 0.25, Every: 2}
	for name, o := range map[string]fed.ClientOptimizer{
		"sgd":      &SGD{Kernel: k, Rate: stairs},
		"adam":     &Adam{Kernel: k, Rate: stairs},
		"amsgrad":  &AMSGrad{Kernel: k, Rate: stairs},
		"scaffold": &Scaffold{Kernel: k, Rate: stairs},
	} {
		// With β = ε = 0 the first step of Adam is rate·g/|g|. For a gradient of 1 that is
		// the rate, as for SGD.
		tr := turn(o, []float32{1}, fed.Span{Lo: 0, Hi: 1})
		tr.Task.Round = 3
		run(o, tr, []float32{1})
		check(t, name, tr.W, 0.75)
	}
}
