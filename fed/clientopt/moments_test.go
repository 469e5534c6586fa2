package clientopt

import (
	"math"
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

// next returns the turn that follows t, for a client that receives back the weights and moments
// that it sent in t.
func next(t *fed.Turn) *fed.Turn {
	n := *t
	n.First = false
	n.Task.Version++
	n.Task.Shared = nil
	for _, s := range t.Shared {
		n.Task.Shared = append(n.Task.Shared, t.W[s.Lo:s.Hi]...)
	}
	n.Task.Shared = append(n.Task.Shared, t.Moments...)
	n.Done += t.Steps
	return &n
}

// A turn of four steps equals two turns of two steps if the moments are kept, or if they
// are averaged over one client.
func TestMomentsContinue(t *testing.T) {
	k := kernels(t)
	adam := func(m Moments) fed.ClientOptimizer {
		return &Adam{Kernel: k, Rate: Rate{Base: 0.125}, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Moments: m}
	}
	amsgrad := func(m Moments) fed.ClientOptimizer {
		return &AMSGrad{Kernel: k, Rate: Rate{Base: 0.125}, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Moments: m}
	}
	for _, c := range []struct {
		name  string
		build func(Moments) fed.ClientOptimizer
		m     Moments
	}{{"adam kept", adam, Keep}, {"adam averaged", adam, Average}, {"amsgrad kept", amsgrad, Keep}} {
		rapid.Check(t, func(rt *rapid.T) {
			n := rapid.IntRange(1, 40).Draw(rt, "weights")
			var v [5][]float32
			for i := range v {
				v[i] = rapid.SliceOfN(rapid.Float32Range(-8, 8), n, n).Draw(rt, "vector")
			}
			lo := rapid.IntRange(0, n).Draw(rt, "lo")
			span := fed.Span{Lo: lo, Hi: rapid.IntRange(lo, n).Draw(rt, "hi")}
			whole, parts := c.build(c.m), c.build(c.m)
			a, b := turn(whole, v[0], span), turn(parts, v[0], span)
			run(whole, a, v[1:]...)
			b.Steps = 2
			run(parts, b, v[1], v[2])
			b = next(b)
			run(c.build(c.m), b, v[3], v[4]) // another worker
			if !sameBits(a.W, b.W) || !sameBits(a.Kept, b.Kept) || !sameBits(a.Moments, b.Moments) {
				rt.Fatalf("%s: %v in one turn, %v in two", c.name, a, b)
			}
		})
	}
}

// A client whose first turn is at a later version has no moments of its own.
func TestAveragedMomentsOfNewClient(t *testing.T) {
	k := kernels(t)
	o := &Adam{Kernel: k, Rate: Rate{Base: 1}, Beta1: 0.5, Beta2: 0.75, Moments: Average}
	tr := turn(o, []float32{1, 1}, fed.Span{Lo: 0, Hi: 1})
	copy(tr.Task.Shared, []float32{1, 2, 16})
	copy(tr.Kept, []float32{9, 9, 9}) // not valid in the first turn
	tr.Done = 1
	run(o, tr, []float32{2, 2})
	// Shared: m = 2, v = 13, k = 2: 1 - (2/0.75) / √(13/0.4375) = 0.51083...
	// Personal: m = 1, v = 1, k = 1: 1 - (1/0.5) / √(1/0.25) = 0
	near(t, "weights", tr.W, 1-2/0.75/math.Sqrt(13/0.4375), 0)
	check(t, "sent", tr.Moments, 2, 13)
	check(t, "kept", tr.Kept, 1, 1, 1)
}

// Received second moments are raised to the smallest value that fits the first moment.
func TestReceivedMomentsAreSafe(t *testing.T) {
	k := kernels(t)
	o := &Adam{Kernel: k, Rate: Rate{Base: 0.01}, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, Moments: Average}
	for _, v := range []float32{0, -1, 1e-20, float32(math.Copysign(0, -1))} {
		tr := turn(o, []float32{1}, fed.Span{Lo: 0, Hi: 1})
		copy(tr.Task.Shared, []float32{1, 1e-3, v})
		tr.Done = 1000
		run(o, tr, []float32{0})
		if d := math.Abs(float64(tr.W[0]) - 1); !(d < 0.01*8) || d == 0 {
			t.Errorf("a step of %v from v = %v", d, v)
		}
	}
}

// The lower bound holds for the moments of any gradients, so it changes no honest moments.
func TestLowerBoundOfMoments(t *testing.T) {
	k := kernels(t)
	rapid.Check(t, func(rt *rapid.T) {
		g := rapid.SliceOfN(rapid.Float32Range(-1, 1), 1, 60).Draw(rt, "gradients")
		o := &Adam{Kernel: k, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, Moments: Average}
		tr := turn(o, []float32{1}, fed.Span{Lo: 0, Hi: 1})
		o.Begin(tr)
		for _, x := range g {
			o.Step(tr.W, []float32{x})
		}
		o.End(tr)
		then := next(tr)
		o.Begin(then)
		if got, want := o.v[0], tr.Moments[1]; math.Abs(float64(got-want)) > 1e-5*float64(want) {
			rt.Fatalf("v is %v, received %v", got, want)
		}
	})
}
