package serveropt

import (
	"encoding"
	"math"
	"slices"
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

// optimizers lists every optimizer of the package, with different settings.
var optimizers = []struct {
	name string
	new  func() fed.ServerOptimizer
}{
	{"fedavg", func() fed.ServerOptimizer { return Descent{Rate: .5} }},
	{"fedavgm", func() fed.ServerOptimizer { return &Momentum{Rate: .5, Beta1: .9} }},
	{"fedavgm dampened", func() fed.ServerOptimizer { return &Momentum{Rate: .5, Beta1: .9, Dampening: .9} }},
	{"fedadagrad", func() fed.ServerOptimizer { return &Adaptive{Rule: Adagrad, Rate: .1, Tau: 1e-3} }},
	{"fedadam", func() fed.ServerOptimizer { return &Adaptive{Rule: Adam, Rate: .1, Beta1: .9, Beta2: .99, Tau: 1e-3} }},
	{"fedyogi", func() fed.ServerOptimizer {
		return &Adaptive{Rule: Yogi, Rate: .1, Beta1: .9, Beta2: .99, Tau: 1e-3, SecondMoment: OfMomentum}
	}},
}

// step is a displacement and the weights expected after it.
type step struct{ d, want []float64 }

// wantSteps takes the steps, starting from shared, and compares the weights after each.
func wantSteps(t *testing.T, o fed.ServerOptimizer, shared []float32, steps ...step) {
	t.Helper()
	shared = slices.Clone(shared)
	for k, s := range steps {
		o.Step(shared, s.d)
		for i := range shared {
			if float64(shared[i]) != float64(float32(s.want[i])) {
				t.Errorf("%+v: weights %v after step %d, want %v", o, shared, k+1, s.want)
				return
			}
		}
	}
}

func save(t interface{ Fatal(...any) }, o fed.ServerOptimizer) []byte {
	s, ok := o.(encoding.BinaryMarshaler)
	if !ok {
		return nil
	}
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestConformance checks every optimizer against the contract: the optimizer does not change
// the displacement, the weights stay finite, the optimizer continues from a saved state bit for
// bit, and it panics if the number of weights changes.
func TestConformance(t *testing.T) {
	for _, c := range optimizers {
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				a := c.new()
				weights := rapid.SliceOfN(rapid.Float32Range(-2, 2), 0, 3).Draw(t, "weights")
				for range rapid.IntRange(1, 5).Draw(t, "steps") {
					b := c.new()
					if s, ok := b.(encoding.BinaryUnmarshaler); ok {
						if err := s.UnmarshalBinary(save(t, a)); err != nil {
							t.Fatal(err)
						}
					}
					d := rapid.SliceOfN(rapid.Float64Range(-2, 2), len(weights), len(weights)).Draw(t, "d")
					before, other := slices.Clone(d), slices.Clone(weights)
					a.Step(weights, d)
					b.Step(other, d)
					if !slices.Equal(d, before) {
						t.Fatalf("Step changed the displacement from %v to %v", before, d)
					}
					if !slices.Equal(weights, other) || !slices.Equal(save(t, a), save(t, b)) {
						t.Fatalf("%v without interruption, %v from a saved state", weights, other)
					}
					for _, w := range weights {
						if w-w != 0 {
							t.Fatalf("weights %v", weights)
						}
					}
				}
			})
			wantPanic(t, "more weights", func() { c.new().Step(make([]float32, 2), make([]float64, 1)) })
			wantPanic(t, "fewer weights", func() { c.new().Step(make([]float32, 1), make([]float64, 2)) })
			if _, ok := c.new().(encoding.BinaryMarshaler); !ok {
				return
			}
			wantPanic(t, "another length", func() {
				o := c.new()
				o.Step(make([]float32, 2), make([]float64, 2))
				o.Step(make([]float32, 1), make([]float64, 1))
			})
			wantPanic(t, "another length, saved", func() {
				o := c.new()
				o.Step(make([]float32, 2), make([]float64, 2))
				saved := save(t, o)
				o = c.new()
				if err := o.(encoding.BinaryUnmarshaler).UnmarshalBinary(saved); err != nil {
					t.Fatal(err)
				}
				o.Step(make([]float32, 1), make([]float64, 1))
			})
		})
	}
}

func wantPanic(t *testing.T, name string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", name)
		}
	}()
	f()
}

// TestBadState checks that an optimizer rejects states that are damaged or belong to
// another optimizer.
func TestBadState(t *testing.T) {
	kinds := map[string]string{"fedavgm": momentumKind, "fedadam": adaptiveKind}
	for _, c := range optimizers {
		kind, ok := kinds[c.name]
		if !ok {
			continue
		}
		encoded := func(kind string, m, v []float64) []byte { return encode(state{kind, m, v}) }
		o := c.new()
		o.Step(make([]float32, 2), []float64{1, 2})
		good := save(t, o)
		other := map[string]string{momentumKind: adaptiveKind, adaptiveKind: momentumKind}[kind]
		bad := map[string][]byte{
			"nothing":        nil,
			"truncated":      good[:len(good)-1],
			"too long":       append(slices.Clone(good), 0),
			"another kind":   encoded(other, []float64{1, 2}, []float64{1, 2}),
			"another length": encoded(kind, []float64{1}, []float64{1}),
			"not finite":     encoded(kind, []float64{1, math.NaN()}, []float64{1, 2}),
		}
		if kind == adaptiveKind {
			bad["two lengths"] = encoded(kind, []float64{1, 2}, []float64{1})
			bad["negative"] = encoded(kind, []float64{1, 2}, []float64{1, -1})
		}
		for what, b := range bad {
			if err := o.(encoding.BinaryUnmarshaler).UnmarshalBinary(b); err == nil {
				t.Errorf("%s, %s: no error", c.name, what)
			}
		}
		if !slices.Equal(save(t, o), good) {
			t.Errorf("%s: a rejected state changed the optimizer", c.name)
		}
	}
}
