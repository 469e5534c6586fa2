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
		if got := c.rate.At(c.round, 2, 3); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("%+v in round %d is %v, want %v", c.rate, c.round, got, c.want)
		}
	}
}

// Every optimizer uses the round's learning rate. The test omits Prox, which has no rate of
// its own.
func TestRateDependsOnRound(t *testing.T) {
	k, stairs := kernels(t), Rate{Base: 1, Factor: 0.25, Every: 2}
	for name, o := range map[string]fed.ClientOptimizer{
		"sgd":      &SGD{Kernel: k, Rate: stairs},
		"adam":     &Adam{Kernel: k, Rate: stairs},
		"amsgrad":  &AMSGrad{Kernel: k, Rate: stairs},
		"scaffold": &Scaffold{Kernel: k, Rate: stairs},
		"decay":    &Decay{Kernel: k, Rate: stairs, All: 1, Inner: &SGD{Kernel: k, Rate: Rate{Base: 0}}},
	} {
		// With β = ε = 0 the first step of Adam is rate·g/|g|. For a gradient of 1 that is
		// the rate, as for SGD.
		tr := turn(o, []float32{1}, fed.Span{Lo: 0, Hi: 1})
		tr.Task.Round = 3
		run(o, tr, []float32{1})
		check(t, name, tr.W, 0.75)
	}
}

func TestCosine(t *testing.T) {
	r := Rate{Base: 0.5, End: 0.1, Rounds: 4, Warmup: 3}
	for round := range 6 {
		for step := range 5 {
			s := round*5 + step
			want := 0.1
			if s < 20 {
				want += 0.4 * (1 + math.Cos(math.Pi*float64(s)/20)) / 2
			}
			if s < 3 {
				want *= float64(s+1) / 3
			}
			if got := r.At(round, step, 5); math.Abs(got-want) > 1e-15 {
				t.Errorf("round %d, step %d: %v, want %v", round, step, got, want)
			}
		}
	}
	late := Rate{Base: 0.5, Rounds: 1, From: 7}
	if a, b := late.At(7, 0, 4), late.At(7, 2, 4); a != 0.5 || math.Abs(b-0.25) > 1e-15 {
		t.Errorf("rates %v and %v, want 0.5 and 0.25", a, b)
	}
	// Large plans do not overflow.
	if got := r.At(math.MaxInt32, math.MaxInt32, math.MaxInt32); got != 0.1 {
		t.Errorf("rate %v at the end of a long run", got)
	}
}

func TestHalfCosine(t *testing.T) {
	for i := range 1001 {
		x := float64(i) / 1000
		if got, want := halfCosine(x), (1+math.Cos(math.Pi*x))/2; math.Abs(got-want) > 5e-16 {
			t.Errorf("at %v: %v, want %v", x, got, want)
		}
	}
}

// Every optimizer uses the rate of the step, not just that of the round.
func TestRateDependsOnStep(t *testing.T) {
	k, falling := kernels(t), Rate{Base: 1, Rounds: 1}
	for name, o := range map[string]fed.ClientOptimizer{
		"sgd":      &SGD{Kernel: k, Rate: falling},
		"adam":     &Adam{Kernel: k, Rate: falling},
		"amsgrad":  &AMSGrad{Kernel: k, Rate: falling},
		"scaffold": &Scaffold{Kernel: k, Rate: falling},
		"decay":    &Decay{Kernel: k, Rate: falling, All: 1, Inner: &SGD{Kernel: k}},
	} {
		tr := turn(o, []float32{1}, fed.Span{Lo: 0, Hi: 1})
		tr.Steps = 2
		o.Begin(tr)
		o.Step(tr.W, []float32{1}) // rate 1
		check(t, name, tr.W, 0)
		tr.W[0] = 1
		o.Step(tr.W, []float32{1}) // rate 1/2
		check(t, name, tr.W, 0.5)
	}
}
