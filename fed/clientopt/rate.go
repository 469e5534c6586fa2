package clientopt

import (
	"math"

	"loadstar/fed"
)

// Rate is a client's learning rate. It is constant, or lowered in steps (reddi2021,
// appendix E.6, with Factor 0.1 and Every 500):
//
//	rate = Base · Factor^⌊round/Every⌋
//
// or, if Rounds is set, it falls from Base to End along a cosine over all steps of the run
// (Loshchilov and Hutter 2017, equation 5, without restarts). With S steps in each round,
// step s of the run has
//
//	rate = End + (Base - End) · (1 + cos(π s / (Rounds·S))) / 2
//
// In the first Warmup steps of the run, the rate is multiplied by (s+1)/Warmup.
//
// Deviations: none. Rounds and steps count from 0.
type Rate struct {
	Base   float64
	Factor float64
	Every  int // rounds between changes of the rate; 0 means no changes

	End    float64
	Rounds int // number of rounds over which the rate falls along a cosine; 0 means no cosine
	From   int // number of the first of these rounds
	Warmup int // steps
}

// At returns the learning rate for one step of a round with the given number of steps.
func (r Rate) At(round, step, steps int) float64 {
	rate := r.Base
	if r.Every > 0 {
		rate *= math.Pow(r.Factor, float64(round/r.Every))
	}
	if !r.varies() {
		return rate
	}
	// A float64 represents these numbers exactly, and a product of large ones cannot overflow,
	// unlike a product of integers.
	s := float64(float64(max(round-r.From, 0))*float64(steps)) + float64(step)
	if r.Rounds > 0 {
		rate = r.End + float64((rate-r.End)*halfCosine(s/float64(float64(r.Rounds)*float64(steps))))
	}
	if s+1 < float64(r.Warmup) {
		rate *= (s + 1) / float64(r.Warmup)
	}
	return rate
}

// varies reports whether the rate can differ between the steps of a round.
func (r Rate) varies() bool { return r.Rounds > 0 || r.Warmup > 0 }

// halfCosine returns (1 + cos(πx)) / 2, and 0 if x is above 1. It sums the Taylor series
// of the cosine around ½, with conversions that prevent fused operations, because
// [math.Cos] may return different bits on different platforms.
func halfCosine(x float64) float64 {
	if x >= 1 {
		return 0
	}
	// cos(πx) = -sin(z) with z = π(x-½) within ±π/2.
	z := float64(math.Pi * (x - 0.5))
	z2 := float64(z * z)
	term, sum := z, z
	for n := 2.0; n <= 24; n += 2 { // the last term is below 1e-20
		term = float64(-term * z2 / float64(n*(n+1)))
		sum += term
	}
	return 0.5 - float64(0.5*sum)
}

// course is the learning rate during one turn.
type course struct {
	rate               Rate
	round, step, steps int
}

// begin starts a turn.
func (c *course) begin(r Rate, t *fed.Turn) {
	*c = course{rate: r, round: t.Task.Round, steps: t.Steps}
}

// next returns the learning rate of the next step.
func (c *course) next() float64 {
	c.step++
	return c.rate.At(c.round, c.step-1, c.steps)
}
