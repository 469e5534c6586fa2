package clientopt

import (
	"testing"

	"loadstar/fed"
)

// BenchmarkTurn measures a turn of 8 steps on the 39,886 weights of the model dense, 23,751
// of them shared, without the gradients.
func BenchmarkTurn(b *testing.B) {
	const weights, shared, steps = 39886, 23751, 8
	k, rate := kernels(b), Rate{Base: 1e-9}
	adam := func(m Moments) fed.ClientOptimizer {
		return &Adam{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, Moments: m}
	}
	for name, o := range map[string]fed.ClientOptimizer{
		"reset": adam(Reset), "kept": adam(Keep), "averaged": adam(Average),
		"decay":  &Decay{Kernel: k, Rate: rate, Correction: 8, Inner: adam(Reset)},
		"cosine": &Adam{Kernel: k, Rate: Rate{Base: 1e-9, End: 1e-10, Rounds: 9}, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
	} {
		b.Run(name, func(b *testing.B) {
			t := turn(o, make([]float32, weights), fed.Span{Lo: 0, Hi: shared})
			t.Correction, t.Noise, t.Steps = []fed.Span{{Lo: shared, Hi: weights}}, 0.5, steps
			g := make([]float32, weights)
			for i := range g {
				g[i] = 0.01
			}
			for b.Loop() {
				o.Begin(t)
				for range steps {
					o.Step(t.W, g)
				}
				o.End(t)
				t.First = false
			}
		})
	}
}
