package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/nn/nntest"
)

// nets cover unusual shapes: widths close to the vector width, a stack of three layers,
// windows of one step, networks without an LSTM, and graphs whose blocks have several inputs
// and several readers.
var nets = map[string]func() (*nn.Net, error){
	"stack": func() (*nn.Net, error) {
		return nn.Build(5, 3, nn.LSTM{Name: "lstm", Hidden: 7, Layers: 3}, nn.Linear{Name: "fc.0", Out: 17}, nn.PReLU{Name: "fc.1"}, nn.Linear{Name: "fc.2", Out: 2})
	},
	"last step": func() (*nn.Net, error) {
		return nn.Build(4, 1, nn.LSTM{Name: "lstm", Hidden: 16, Layers: 2, Last: true}, nn.Linear{Name: "fc", Out: 6})
	},
	"one step": func() (*nn.Net, error) {
		return nn.Build(1, 9, nn.LSTM{Name: "lstm", Hidden: 1}, nn.Linear{Name: "fc", Out: 2})
	},
	"PReLU behind an LSTM": func() (*nn.Net, error) {
		return nn.Build(5, 3, nn.LSTM{Name: "lstm", Hidden: 7}, nn.PReLU{Name: "fc.0"}, nn.Linear{Name: "fc.1", Out: 2})
	},
	"perceptron": func() (*nn.Net, error) {
		return nn.Build(3, 2, nn.Linear{Name: "fc.0", Out: 33}, nn.PReLU{Name: "fc.1"}, nn.Linear{Name: "fc.2", Out: 4})
	},
	"residual": func() (*nn.Net, error) { // the structure of model dense
		return nn.Build(1, 21,
			nn.Linear{Name: "a", Out: 18}, nn.PReLU{Name: "b"}, nn.Linear{Name: "c", Out: 18}, nn.PReLU{Name: "d"},
			nn.Add{Name: "sum", From: []string{"d", "b"}},
			nn.Linear{Name: "head", Out: 2, From: []string{"sum", "input"}},
			nn.Linear{Name: "e", Out: 17, From: []string{"sum", "input"}}, nn.PReLU{Name: "f"},
			nn.Linear{Name: "g", Out: 2, From: []string{"f", "sum", "input"}},
			nn.Add{Name: "out", From: []string{"head", "g"}})
	},
	// PReLU layers and sums that are not the last readers of a block must add their gradient
	// to that of the later readers.
	"many readers": func() (*nn.Net, error) {
		return nn.Build(2, 4,
			nn.Linear{Name: "a", Out: 8}, nn.PReLU{Name: "b"},
			nn.Add{Name: "c", From: []string{"a", "input", "b"}},
			nn.PReLU{Name: "d"},
			nn.Linear{Name: "e", Out: 8, From: []string{"input", "c", "a"}},
			nn.Add{Name: "f", From: []string{"e", "d"}},
			nn.Linear{Name: "g", Out: 16, From: []string{"f", "e", "b"}},
			nn.Linear{Name: "h", Out: 3, From: []string{"g", "f"}},
			nn.PReLU{Name: "i"},
			nn.Linear{Name: "j", Out: 3, From: []string{"i", "h", "g", "input"}},
			nn.Add{Name: "k", From: []string{"h", "j", "i"}}, nn.PReLU{Name: "l"})
	},
	"LSTM and its input": func() (*nn.Net, error) {
		return nn.Build(3, 4, nn.LSTM{Name: "lstm", Hidden: 4, Layers: 2}, nn.PReLU{Name: "a"},
			nn.Linear{Name: "b", Out: 12, From: []string{"lstm", "input"}},
			nn.Add{Name: "c", From: []string{"lstm", "input", "b", "a"}},
			nn.Linear{Name: "d", Out: 2})
	},
}

func build(t *testing.T, name string) *nn.Net {
	t.Helper()
	net, err := nets[name]()
	if err != nil {
		t.Fatal(err)
	}
	return net
}

func forEach(t *testing.T, f func(t *testing.T, net *nn.Net, k *kernel.Set)) {
	for name := range nets {
		for _, k := range kernel.Available() {
			t.Run(fmt.Sprintf("%s/%s", name, k), func(t *testing.T) { f(t, build(t, name), k) })
		}
	}
}

func random(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// setup returns random weights (including the slopes of PReLU layers), windows and targets.
func setup(net *nn.Net, batch int) (w, x, y []float32) {
	rng := rand.New(rand.NewPCG(1, uint64(batch)))
	w = make([]float32, net.Weights())
	net.Init(w, rng)
	for i := range w {
		w[i] += float32(rng.NormFloat64()) * 0.05
	}
	return w, random(rng, batch*net.Lookback()*net.Inputs()), random(rng, batch*net.Outputs())
}

func TestPredictAgainstReference(t *testing.T) {
	forEach(t, func(t *testing.T, net *nn.Net, k *kernel.Set) {
		for _, batch := range []int{1, 2, 15, 16, 17, 40} {
			w, x, _ := setup(net, batch)
			// A workspace that is smaller than the batch processes the batch in pieces.
			ws := net.NewWorkspace(k, 17)
			out := make([]float32, batch*net.Outputs())
			ws.Predict(out, w, x)
			window := net.Lookback() * net.Inputs()
			for b := range batch {
				want := nntest.Outputs(net, nntest.Float64s(w), nntest.Float64s(x[b*window:(b+1)*window]))
				for o, v := range want {
					if got := float64(out[b*net.Outputs()+o]); math.Abs(got-v) > 1e-5 {
						t.Fatalf("batch %d: output %d of window %d = %g, want %g", batch, o, b, got, v)
					}
				}
			}
		}
	})
}

func TestGradientAgainstDifferences(t *testing.T) {
	forEach(t, func(t *testing.T, net *nn.Net, k *kernel.Set) {
		for _, batch := range []int{1, 16, 19} {
			w, x, y := setup(net, batch)
			nntest.CheckGradient(t, net, k, w, x, y, nn.MSE{})
		}
	})
}

// TestWorkspaceKeepsNothing trains two clients with one workspace, after a client whose
// inputs are NaN. Each client must get the same bits as with a new workspace.
func TestWorkspaceKeepsNothing(t *testing.T) {
	forEach(t, func(t *testing.T, net *nn.Net, k *kernel.Set) {
		w1, x1, y1 := setup(net, 32)
		w2, x2, y2 := setup(net, 5)
		g1, g2 := make([]float32, net.Weights()), make([]float32, net.Weights())
		want1 := net.NewWorkspace(k, 32).Gradient(g1, w1, x1, y1, nn.MSE{})
		want2 := net.NewWorkspace(k, 5).Gradient(g2, w2, x2, y2, nn.MSE{})
		shared := net.NewWorkspace(k, 32)
		g := make([]float32, net.Weights())
		broken := random(rand.New(rand.NewPCG(4, 4)), len(x1))
		for i := range broken {
			broken[i] = float32(math.NaN())
		}
		shared.Gradient(g, w1, broken, y1, nn.MSE{})
		for round := range 3 {
			if got := shared.Gradient(g, w1, x1, y1, nn.MSE{}); got != want1 || !equal(g, g1) {
				t.Fatalf("round %d: client 1 differs", round)
			}
			if got := shared.Gradient(g, w2, x2, y2, nn.MSE{}); got != want2 || !equal(g, g2) {
				t.Fatalf("round %d: client 2 differs", round)
			}
		}
	})
}

func equal(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

func TestNoAllocations(t *testing.T) {
	forEach(t, func(t *testing.T, net *nn.Net, k *kernel.Set) {
		pinball, err := nn.NewPinball(0.1, 0.9)
		if err != nil {
			t.Fatal(err)
		}
		n := net.Weights()
		g, m, v, vmax := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		for _, batch := range []int{1, 16, 17} {
			w, x, y := setup(net, batch)
			ws := net.NewWorkspace(k, batch)
			out := make([]float32, batch*net.Outputs())
			for name, f := range map[string]func(){
				"mse":     func() { ws.Gradient(g, w, x, y, nn.MSE{}) },
				"mae":     func() { ws.Gradient(g, w, x, y, nn.MAE{}) },
				"pinball": func() { ws.Gradient(g, w, x, y[:len(y)/2], pinball) },
				"predict": func() { ws.Predict(out, w, x) },
				"adam":    func() { k.Adam(w, g, m, v, kernel.AdamStep{Step: 1}) },
				"amsgrad": func() { k.AMSGrad(w, g, m, v, vmax, kernel.AdamStep{Step: 1}) },
			} {
				if name == "pinball" && net.Outputs()%2 != 0 {
					continue
				}
				if n := testing.AllocsPerRun(10, f); n != 0 {
					t.Errorf("%s at batch %d: %g allocations", name, batch, n)
				}
			}
		}
	})
}

// TestPredictInAnyCompany checks that a window's outputs depend neither on the other windows in
// the batch nor on the size of the workspace.
func TestPredictInAnyCompany(t *testing.T) {
	forEach(t, func(t *testing.T, net *nn.Net, k *kernel.Set) {
		w, x, _ := setup(net, 33)
		want, got := make([]float32, 33*net.Outputs()), make([]float32, 33*net.Outputs())
		net.NewWorkspace(k, 64).Predict(want, w, x)
		for _, size := range []int{1, 16, 32, 33} {
			net.NewWorkspace(k, size).Predict(got, w, x)
			if !equal(got, want) {
				t.Errorf("a workspace of %d gives other bits", size)
			}
		}
	})
}

// TestConcurrentUse uses one network in several goroutines with their own workspaces, so
// that the race detector can report unsafe sharing.
func TestConcurrentUse(t *testing.T) {
	net := build(t, "stack")
	w, x, y := setup(net, 16)
	want := make([]float32, net.Weights())
	k := kernel.Available()[0]
	net.NewWorkspace(k, 16).Gradient(want, w, x, y, nn.MSE{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			g, ws := make([]float32, net.Weights()), net.NewWorkspace(k, 16)
			for range 10 {
				if ws.Gradient(g, w, x, y, nn.MSE{}); !equal(g, want) {
					t.Error("another goroutine changed the gradient")
				}
			}
		})
	}
	wg.Wait()
}

// TestNaNShows checks that one NaN in the inputs appears in the loss and in every tensor of
// the gradient that depends on it.
func TestNaNShows(t *testing.T) {
	for _, k := range kernel.Available() {
		net := build(t, "stack")
		w, x, y := setup(net, 16)
		x[3] = float32(math.NaN())
		g := make([]float32, net.Weights())
		loss := net.NewWorkspace(k, 16).Gradient(g, w, x, y, nn.MSE{})
		if !math.IsNaN(loss) {
			t.Errorf("%s: loss %g of inputs with NaN", k, loss)
		}
		for _, l := range net.Layers() {
			if nn.NotFinite(g[l.Offset():l.Offset()+l.Len()]) < 0 {
				t.Errorf("%s: finite gradient of %s", k, l.Name)
			}
		}
	}
}

func TestLosses(t *testing.T) {
	// The networks have one or three outputs, and the targets are 1 and -1. The expected
	// values were computed by hand.
	net, err := nn.Build(1, 1, nn.Linear{Name: "fc", Out: 1})
	if err != nil {
		t.Fatal(err)
	}
	three, err := nn.Build(1, 1, nn.Linear{Name: "fc", Out: 3})
	if err != nil {
		t.Fatal(err)
	}
	pinball, err := nn.NewPinball(0.1, 0.5, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		net  *nn.Net
		loss nn.Loss
		bias []float32
		want float64
		grad []float32 // the gradient of the biases
	}{
		{"mse", net, nn.MSE{}, []float32{0.5}, (0.25 + 2.25) / 2, []float32{(2*-0.5 + 2*1.5) / 2}},
		{"mae", net, nn.MAE{}, []float32{0.5}, (0.5 + 1.5) / 2, []float32{0}},
		// The losses of the errors 1 and -1 at each quantile are 0.1+0.9, 0.5+0.5 and
		// 0.9+0.1.
		{"pinball", three, pinball, []float32{0, 0, 0}, 0.5, []float32{0.8 / 6, 0, -0.8 / 6}},
	} {
		k := kernel.Available()[0]
		w := append(make([]float32, len(c.bias)), c.bias...)
		g := make([]float32, len(w))
		got := c.net.NewWorkspace(k, 2).Gradient(g, w, []float32{0, 0}, []float32{1, -1}, c.loss)
		if math.Abs(got-c.want) > 1e-7 {
			t.Errorf("%s: loss %g, want %g", c.name, got, c.want)
		}
		for i, want := range c.grad {
			if d := g[len(c.bias)+i] - want; d > 1e-7 || d < -1e-7 {
				t.Errorf("%s: gradient of bias %d is %g, want %g", c.name, i, g[len(c.bias)+i], want)
			}
		}
	}
	for _, bad := range [][]float64{nil, {0}, {1}, {0.5, 0.5}, {0.9, 0.1}, {math.NaN()}} {
		if _, err := nn.NewPinball(bad...); err == nil {
			t.Errorf("NewPinball(%v): no error", bad)
		}
	}
}
