package clientopt

import (
	"math"
	"slices"
	"testing"

	"loadstar/fed"
	"loadstar/nn/kernel"

	"pgregory.net/rapid"
)

func kernels(t testing.TB) *kernel.Set {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// all returns a new instance of every optimizer, by name.
func all(t testing.TB) map[string]fed.ClientOptimizer {
	k, rate := kernels(t), Rate{Base: 0.125}
	sgd := func() fed.ClientOptimizer { return &SGD{Kernel: k, Rate: rate} }
	adam := func() fed.ClientOptimizer {
		return &Adam{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8}
	}
	return map[string]fed.ClientOptimizer{
		"sgd":      sgd(),
		"adam":     adam(),
		"amsgrad":  &AMSGrad{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8},
		"prox":     &Prox{Kernel: k, Mu: 0.5, Inner: sgd()},
		"proxadam": &Prox{Kernel: k, Mu: 0.5, Inner: adam()},
		"scaffold": &Scaffold{Kernel: k, Rate: rate},
		"decay":    &Decay{Kernel: k, Rate: rate, All: 0.5, Inner: sgd()},
		"kept":     &Adam{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Moments: Keep},
		"averaged": &Adam{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Moments: Average},
		"kept max": &AMSGrad{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Moments: Keep},
	}
}

// turn returns a turn of a client with the weights w. The weights in the spans are shared
// and equal the received weights.
func turn(o fed.ClientOptimizer, w []float32, shared ...fed.Span) *fed.Turn {
	t := &fed.Turn{W: slices.Clone(w), Shared: shared, First: true}
	for _, s := range shared {
		t.Task.Shared = append(t.Task.Shared, w[s.Lo:s.Hi]...)
	}
	n := len(t.Task.Shared)
	t.Task.Control, t.Control = make([]float32, n), make([]float32, n)
	t.Kept = make([]float32, o.Kept(len(w), n))
	if a, ok := o.(*Adam); ok && a.Moments == Average {
		t.Task.Shared = append(t.Task.Shared, make([]float32, 2*n)...)
		t.Moments = make([]float32, 2*n)
	}
	return t
}

// run takes a step for each gradient, without changing the gradients.
func run(o fed.ClientOptimizer, t *fed.Turn, gradients ...[]float32) {
	o.Begin(t)
	for _, g := range gradients {
		o.Step(t.W, slices.Clone(g))
	}
	o.End(t)
}

func check(t testing.TB, what string, got []float32, want ...float32) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func near(t testing.TB, what string, got []float32, want ...float64) {
	t.Helper()
	for i := range want {
		if !(math.Abs(float64(got[i])-want[i]) <= 1e-6) {
			t.Errorf("%s: %v, want %v", what, got, want)
			return
		}
	}
}

// sameBits reports whether a and b have equal bits. It does not use ==, which treats -0
// and 0 as equal.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestNoStateBetweenTurns(t *testing.T) {
	w := []float32{1, -2, 0.5, 3}
	gradients := [][]float32{{1, 2, -3, 0.5}, {0.5, -1, 2, 0.25}, {0.125, 4, 1, -1}}
	spans := []fed.Span{{Lo: 0, Hi: 1}, {Lo: 2, Hi: 4}}
	fresh, worn := all(t), all(t)
	for name, o := range worn {
		run(o, turn(o, []float32{9, 8, 7, 6}, spans...), [][]float32{{1, 1, 1, 1}, {1e3, -2, 5, 0}}...)
		a, b := turn(o, w, spans...), turn(o, w, spans...)
		run(o, a, gradients...)
		run(fresh[name], b, gradients...)
		if !sameBits(a.W, b.W) || !sameBits(a.Kept, b.Kept) || !sameBits(a.Control, b.Control) {
			t.Errorf("%s: %v after another client, %v without", name, a, b)
		}
	}
}

func TestTaskIsNotChanged(t *testing.T) {
	for name, o := range all(t) {
		tr := turn(o, []float32{1, 2, 3}, fed.Span{Lo: 1, Hi: 3})
		tr.Task.Control[0] = 0.5
		run(o, tr, []float32{1, 1, 1}, []float32{2, 2, 2})
		check(t, name+": received", tr.Task.Shared[:2], 2, 3)
		for _, x := range tr.Task.Shared[2:] {
			check(t, name+": received moments", []float32{x}, 0)
		}
		check(t, name+": received control", tr.Task.Control, 0.5, 0)
		if name != "scaffold" {
			check(t, name+": sent control", tr.Control, 0, 0)
		}
	}
}

// The value and the gradient of a personal weight must not affect any other weight or the
// control variate.
func TestPersonalWeightsAreIsolated(t *testing.T) {
	for name, o := range all(t) {
		var sent [2]*fed.Turn
		for i, personal := range []float32{5, -7} {
			tr := turn(o, []float32{1, personal, 3}, fed.Span{Lo: 0, Hi: 1}, fed.Span{Lo: 2, Hi: 3})
			run(o, tr, []float32{1, personal, 1}, []float32{2, 3 * personal, 2})
			sent[i] = tr
		}
		a, b := sent[0], sent[1]
		if a.W[0] != b.W[0] || a.W[2] != b.W[2] || !sameBits(a.Control, b.Control) || !sameBits(a.Moments, b.Moments) ||
			!sameBits(sharedState(name, a.Kept), sharedState(name, b.Kept)) {
			t.Errorf("%s: %v and %v differ in more than the personal weight", name, a, b)
		}
		if a.W[1] == 5 || b.W[1] == -7 {
			t.Errorf("%s does not train the personal weight", name)
		}
	}
}

// sharedState returns the part of a client's state that its personal weight, the second of
// three weights, must not affect.
func sharedState(name string, kept []float32) []float32 {
	switch name {
	case "averaged": // moments of personal weights only
		return nil
	case "kept", "kept max":
		var state []float32
		for i := 0; i+3 <= len(kept); i += 3 {
			state = append(state, kept[i], kept[i+2])
		}
		return state
	}
	return kept
}

func TestNoAllocations(t *testing.T) {
	w := make([]float32, 100)
	for name, o := range all(t) {
		tr := turn(o, w, fed.Span{Lo: 0, Hi: 40}, fed.Span{Lo: 50, Hi: 90})
		g := make([]float32, len(w))
		once := func() {
			o.Begin(tr)
			o.Step(tr.W, g)
			o.Step(tr.W, g)
			o.End(tr)
			tr.First = false
		}
		once()
		if n := testing.AllocsPerRun(10, once); n != 0 {
			t.Errorf("%s allocates %v times in a turn", name, n)
		}
	}
}

// vectors generates vectors of equal length with arbitrary bits.
func vectors(t *rapid.T, count int) [][]float32 {
	n := rapid.IntRange(1, 40).Draw(t, "length")
	all := make([][]float32, count)
	for i := range all {
		all[i] = rapid.SliceOfN(rapid.Float32(), n, n).Draw(t, "vector")
	}
	return all
}
