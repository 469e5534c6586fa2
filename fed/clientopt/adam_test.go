package clientopt

import (
	"testing"
)

// moments contains the results of this Python script for each of two weights with their own
// gradients:
//
//	w, m, v, u = 1.0, 0.0, 0.0, 0.0
//	for k, g in enumerate(gradients, 1):
//	    m = .9*m + .1*g; v = .99*v + .01*g*g
//	    vh = v/(1-.99**k); u = max(u, vh)
//	    w -= .1 * (m/(1-.9**k)) / (sqrt(u if amsgrad else vh) + 1e-3)
var moments = struct {
	gradients     [][]float32
	adam, amsgrad [][]float64
}{
	gradients: [][]float32{{1, -0.5}, {0.1, 2}, {-0.2, 0.25}},
	adam: [][]float64{
		{0.9000999000999, 1.0998003992015968},
		{0.8259585105602933, 1.043999553878652},
		{0.7821701367937649, 0.9934017170562591},
	},
	amsgrad: [][]float64{
		{0.9000999000999, 1.0998003992015968},
		{0.847520900152479, 1.043999553878652},
		{0.8217164463037447, 1.0024793676968011},
	},
}

func TestAdam(t *testing.T) {
	o := &Adam{Kernel: kernels(t), Rate: Rate{Base: 0.1}, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-3}
	for k := range moments.gradients {
		tr := turn(o, []float32{1, 1})
		run(o, tr, moments.gradients[:k+1]...)
		near(t, "adam", tr.W, moments.adam[k]...)
	}
}
