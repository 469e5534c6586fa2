package forecast

import (
	"math/rand/v2"
	"testing"

	"loadstar/nn"
	"loadstar/nn/kernel"
)

// BenchmarkDense measures the parts of a training step at batch size 64, a forecast of one row
// and, for comparison, only the step's matrix products. Each has its own memory. All except the
// forecast report the rate of operations in the step's matrix products.
func BenchmarkDense(b *testing.B) {
	const batch = 64
	m := model(b, "dense", Shape{})
	net := m.Net()
	_, flops := net.Flops(batch)
	pinball, err := nn.NewPinball(0.1, 0.5, 0.9)
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	w := m.InitialWeights(1)
	n := len(w)
	g, m1, m2 := make([]float32, n), make([]float32, n), make([]float32, n)
	x, y, out := normal(batch*net.Inputs()), normal(batch), make([]float32, 3)
	for _, k := range kernel.Available() {
		ws := net.NewWorkspace(k, batch)
		products, counted := denseProducts(net, k, batch, normal)
		if counted != flops {
			b.Fatalf("the products have %d operations, a step has %d", counted, flops)
		}
		step := 0
		for _, c := range []struct {
			name string
			f    func()
		}{
			{"step", func() {
				step++
				ws.Gradient(g, w, x, y, pinball)
				k.Adam(w, g, m1, m2, kernel.AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: step})
			}},
			{"gradient", func() { ws.Gradient(g, w, x, y, pinball) }},
			{"products", products},
			{"forecast", func() { ws.Predict(out, w, x[:net.Inputs()]) }},
		} {
			b.Run(k.Name()+"/"+c.name, func(b *testing.B) {
				for b.Loop() {
					c.f()
				}
				if c.name != "forecast" {
					b.ReportMetric(float64(flops)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				}
			})
		}
	}
}

// denseProducts returns a function that computes the matrix products of a training step as
// simply as possible, with every layer's inputs concatenated, and counts their operations.
func denseProducts(net *nn.Net, k *kernel.Set, batch int, normal func(int) []float32) (run func(), flops int64) {
	var products []func()
	mul := func(m, n, depth int, transposed bool) {
		a, b, c := normal(m*depth), normal(depth*n), make([]float32, m*n)
		rs, cs := depth, 1
		if transposed {
			rs, cs = 1, m
		}
		products = append(products, func() { k.MatMul(m, n, depth, a, rs, cs, b, n, c, n, kernel.Zero()) })
		flops += int64(2 * m * n * depth)
	}
	for _, l := range net.Layers() {
		if l.Kind != nn.KindLinear {
			continue
		}
		out, in := l.Tensors[0].Shape[0], l.Tensors[0].Shape[1]
		mul(out, batch, in, false)
		mul(out, in, batch, false)
		if l.Name != "trunk.2" { // the others read the network's input, which needs no gradient
			in -= net.Inputs()
		}
		mul(in, batch, out, true)
	}
	return func() {
		for _, f := range products {
			f()
		}
	}, flops
}
