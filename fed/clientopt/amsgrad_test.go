package clientopt

import (
	"testing"
)

func TestAMSGrad(t *testing.T) {
	o := &AMSGrad{Kernel: kernels(t), Rate: Rate{Base: 0.1}, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-3}
	for k := range moments.gradients {
		tr := turn(o, []float32{1, 1})
		run(o, tr, moments.gradients[:k+1]...)
		near(t, "amsgrad", tr.W, moments.amsgrad[k]...)
	}
}
