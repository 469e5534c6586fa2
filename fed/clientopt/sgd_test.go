package clientopt

import (
	"testing"
)

func TestSGD(t *testing.T) {
	o := &SGD{Kernel: kernels(t), Rate: Rate{Base: 0.25}}
	tr := turn(o, []float32{1, -2})
	// 1 - 2/4 = 0.5, and -2 - 4/4 = -3; then 0.5 + 1/4 = 0.75, and -3 - 0 = -3.
	run(o, tr, []float32{2, 4}, []float32{-1, 0})
	check(t, "weights", tr.W, 0.75, -3)
}
