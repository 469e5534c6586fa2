// Package nntest is a simple float64 implementation of the networks of package nn, for
// comparison in tests.
package nntest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"loadstar/nn"
	"loadstar/nn/kernel"
)

// Outputs computes the outputs of a network for one window.
func Outputs(net *nn.Net, w, x []float64) []float64 {
	weights := map[string][]float64{} // by the name of the layer
	for _, l := range net.Layers() {
		weights[l.Name] = w[l.Offset() : l.Offset()+l.Len()]
	}
	at := x // the output of the last block
	outputs := map[string][]float64{nn.Input: x}
	for _, b := range net.Blocks() {
		switch b := b.(type) {
		case nn.LSTM:
			for d := range max(b.Layers, 1) {
				at = lstm(weights[fmt.Sprintf("%s_l%d", b.Name, d)], at, net.Lookback(), len(at)/net.Lookback(), b.Hidden)
			}
			if b.Last {
				at = at[len(at)-b.Hidden:]
			}
			outputs[b.Name] = at
		case nn.Linear:
			if len(b.From) > 0 {
				at = nil
				for _, from := range b.From {
					at = append(at, outputs[from]...)
				}
			}
			layer := weights[b.Name]
			at = affine(layer, layer[b.Out*len(at):], at)
			outputs[b.Name] = at
		case nn.PReLU:
			y := make([]float64, len(at))
			for j, v := range at {
				y[j] = math.Max(v, 0) + weights[b.Name][j]*math.Min(v, 0)
			}
			at = y
			outputs[b.Name] = at
		case nn.Add:
			y := make([]float64, len(outputs[b.From[0]]))
			for _, from := range b.From {
				for j, v := range outputs[from] {
					y[j] += v
				}
			}
			at = y
			outputs[b.Name] = at
		default:
			panic(fmt.Sprintf("nntest: block %T", b))
		}
	}
	return at
}

func affine(weight, bias, x []float64) []float64 {
	y := append([]float64(nil), bias...)
	for i := range y {
		for j, v := range x {
			y[i] += weight[i*len(x)+j] * v
		}
	}
	return y
}

// lstm returns the hidden states of all steps, one after the other.
func lstm(w, x []float64, steps, in, width int) []float64 {
	gates := 4 * width
	ih, w := w[:gates*in], w[gates*in:]
	hh, w := w[:gates*width], w[gates*width:]
	bih, bhh := w[:gates], w[gates:]
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	h, c := make([]float64, width), make([]float64, width)
	var all []float64
	for s := range steps {
		z, r := affine(ih, bih, x[s*in:(s+1)*in]), affine(hh, bhh, h)
		next := make([]float64, width)
		for j := range width {
			gate := func(g int) float64 { return z[g*width+j] + r[g*width+j] }
			c[j] = sigmoid(gate(1))*c[j] + sigmoid(gate(0))*math.Tanh(gate(2))
			next[j] = sigmoid(gate(3)) * math.Tanh(c[j])
		}
		h = next
		all = append(all, h...)
	}
	return all
}

// Loss computes the mean loss of a batch, like nn.Workspace.Gradient.
func Loss(net *nn.Net, w, x, y []float64, loss nn.Loss) float64 {
	window := net.Lookback() * net.Inputs()
	batch := len(x) / window
	targets := len(y) / batch
	var sum float64
	for b := range batch {
		out := Outputs(net, w, x[b*window:(b+1)*window])
		for o, v := range out {
			e := y[b*targets+o*targets/len(out)] - v
			switch l := loss.(type) {
			case nn.MSE:
				sum += e * e
			case nn.MAE:
				sum += math.Abs(e)
			case *nn.Pinball:
				q := l.Quantile(o)
				sum += math.Max(q*e, (q-1)*e)
			default:
				panic(fmt.Sprintf("nntest: loss %T", loss))
			}
		}
	}
	return sum / float64(batch*net.Outputs())
}

// Slope approximates the derivative of the loss with respect to weight i by central
// differences.
func Slope(net *nn.Net, w, x, y []float64, loss nn.Loss, i int) float64 {
	const step = 1e-6
	at := w[i]
	defer func() { w[i] = at }()
	w[i] = at + step
	above := Loss(net, w, x, y, loss)
	w[i] = at - step
	return (above - Loss(net, w, x, y, loss)) / (2 * step)
}

// CheckGradient compares the loss and the gradient that a kernel set computes for one batch
// with the reference, for a few weights of every tensor.
func CheckGradient(t testing.TB, net *nn.Net, k *kernel.Set, w, x, y []float32, loss nn.Loss) {
	t.Helper()
	batch := len(x) / (net.Lookback() * net.Inputs())
	g := make([]float32, net.Weights())
	for i := range g {
		g[i] = 99 // must be overwritten
	}
	got := net.NewWorkspace(k, batch).Gradient(g, w, x, y, loss)
	w64, x64, y64 := Float64s(w), Float64s(x), Float64s(y)
	if want := Loss(net, w64, x64, y64, loss); math.Abs(got-want) > 1e-5*(1+want) {
		t.Errorf("batch %d: loss %g, want %g", batch, got, want)
	}
	rng := rand.New(rand.NewPCG(2, 2))
	for _, l := range net.Layers() {
		for _, tensor := range l.Tensors {
			// Check the weight with the largest gradient and a few others. The error is
			// relative to the size of the tensor's gradient.
			at := []int{tensor.Offset}
			for i := range tensor.Len() {
				if math.Abs(float64(g[tensor.Offset+i])) > math.Abs(float64(g[at[0]])) {
					at[0] = tensor.Offset + i
				}
			}
			for range 4 {
				at = append(at, tensor.Offset+rng.IntN(tensor.Len()))
			}
			want, size := make([]float64, len(at)), 0.0
			for i := range at {
				want[i] = Slope(net, w64, x64, y64, loss, at[i])
				size = max(size, math.Abs(want[i]))
			}
			for i := range at {
				if math.Abs(float64(g[at[i]])-want[i]) > 1e-3*size+1e-8 {
					t.Errorf("batch %d: slope of weight %d (%s) = %g, want %g", batch, at[i], tensor.Name, g[at[i]], want[i])
				}
			}
		}
	}
}

// Float64s converts x to float64.
func Float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
