package clientopt

import (
	"testing"

	"loadstar/fed"
)

func TestDecay(t *testing.T) {
	k, rate := kernels(t), Rate{Base: 0.5}
	o := &Decay{Kernel: k, Rate: rate, All: 0.25, Correction: 4, Inner: &SGD{Kernel: k, Rate: rate}}
	// All weights shrink by 1 - 0.5·0.25 = 0.875, and the third also by
	// 1 - 0.5·4·0.5² = 0.5. Then each takes the step 0.5·g.
	tr := turn(o, []float32{8, -8, 8}, fed.Span{Lo: 0, Hi: 2})
	tr.Correction, tr.Noise = []fed.Span{{Lo: 2, Hi: 3}}, 0.5
	run(o, tr, []float32{2, 0, -2})
	check(t, "weights", tr.W, 6, -7, 4.5)
	run(o, tr, []float32{0, 0, 0})
	check(t, "weights", tr.W, 5.25, -6.125, 1.96875)
}

// Without noise the correction does not decay.
func TestDecayWithoutNoise(t *testing.T) {
	k, rate := kernels(t), Rate{Base: 0.5}
	o := &Decay{Kernel: k, Rate: rate, Correction: 4, Inner: &SGD{Kernel: k, Rate: rate}}
	tr := turn(o, []float32{8, 8})
	tr.Correction = []fed.Span{{Lo: 0, Hi: 2}}
	run(o, tr, []float32{1, 1})
	check(t, "weights", tr.W, 7.5, 7.5)
}
