package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/nn/nntest"
)

func TestBuildErrors(t *testing.T) {
	for name, f := range map[string]func() (*nn.Net, error){
		"no blocks": func() (*nn.Net, error) { return nn.Build(3, 2) },
		"no steps":  func() (*nn.Net, error) { return nn.Build(0, 2, nn.Linear{Name: "fc", Out: 1}) },
		"LSTM not first": func() (*nn.Net, error) {
			return nn.Build(3, 2, nn.Linear{Name: "fc", Out: 6}, nn.LSTM{Name: "lstm", Hidden: 2})
		},
		"no hidden":  func() (*nn.Net, error) { return nn.Build(3, 2, nn.LSTM{Name: "lstm"}) },
		"no outputs": func() (*nn.Net, error) { return nn.Build(3, 2, nn.Linear{Name: "fc"}) },
		"a name twice": func() (*nn.Net, error) {
			return nn.Build(3, 2, nn.Linear{Name: "fc", Out: 2}, nn.Linear{Name: "fc", Out: 1})
		},
		"too wide": func() (*nn.Net, error) { return nn.Build(3, 1<<30, nn.Linear{Name: "fc", Out: 1}) },
		"too long": func() (*nn.Net, error) { return nn.Build(math.MaxInt, 4, nn.Linear{Name: "fc", Out: 1}) },
		"too many": func() (*nn.Net, error) {
			return nn.Build(1<<13, 2, nn.Linear{Name: "a", Out: 1 << 14}, nn.Linear{Name: "b", Out: 1})
		},
		"negative layers": func() (*nn.Net, error) { return nn.Build(3, 2, nn.LSTM{Name: "lstm", Hidden: 2, Layers: -1}) },
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWiringErrors checks the error messages for blocks that name their inputs.
func TestWiringErrors(t *testing.T) {
	a, b := nn.Linear{Name: "a", Out: 2}, nn.Linear{Name: "b", Out: 3, From: []string{"a", "input"}}
	for _, c := range []struct {
		name   string
		blocks []nn.Block
		want   string
	}{
		{"unknown name", []nn.Block{a, nn.Linear{Name: "b", Out: 1, From: []string{"a", "trunk"}}}, `block 2: b reads "trunk", which is not an earlier block; there are input, a`},
		{"later block", []nn.Block{a, nn.Linear{Name: "b", Out: 1, From: []string{"c"}}, nn.PReLU{Name: "c"}}, `"c", which is not an earlier block`},
		{"itself", []nn.Block{a, nn.Linear{Name: "b", Out: 1, From: []string{"a", "b"}}}, `"b", which is not an earlier block`},
		{"twice", []nn.Block{a, nn.Linear{Name: "b", Out: 1, From: []string{"a", "a"}}}, "b reads a twice"},
		{"name taken", []nn.Block{a, b, nn.Add{Name: "a", From: []string{"a", "b"}}}, `block 3: the name "a" is taken`},
		{"name of the input", []nn.Block{nn.Linear{Name: "input", Out: 1}}, "is the network's input"},
		{"name of an LSTM's layer", []nn.Block{nn.LSTM{Name: "x", Hidden: 2, Last: true}, nn.Linear{Name: "x_l0", Out: 1}}, "two layers are named x_l0"},
		{"widths", []nn.Block{a, b, nn.Add{Name: "sum", From: []string{"a", "b"}}}, "sum sum: a has 2 rows and b has 3"},
		{"sum of one", []nn.Block{a, nn.Add{Name: "sum", From: []string{"a"}}}, "From names 1 of"},
		{"sum of nothing", []nn.Block{a, nn.Add{Name: "sum"}}, "From names 0 of"},
		{"unused", []nn.Block{a, b, nn.Linear{Name: "c", Out: 2, From: []string{"a"}}, nn.PReLU{Name: "d"}}, "block 2: no block reads b;"},
		{"unused sum", []nn.Block{a, nn.PReLU{Name: "p"}, nn.Add{Name: "s", From: []string{"a", "p"}}, nn.Linear{Name: "z", Out: 1, From: []string{"a"}}}, "block 3: no block reads s;"},
		{"too many rows", []nn.Block{nn.Linear{Name: "w", Out: 1 << 14}, nn.Linear{Name: "v", Out: 1, From: []string{"w", "input"}}}, "v reads more than 16384 rows"},
	} {
		_, err := nn.Build(3, 2, c.blocks...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

// TestGraph checks the layers, the positions of the weights and the number of operations of a
// network that has a sum, and layers that read several blocks.
func TestGraph(t *testing.T) {
	net := build(t, "residual")
	var names []string
	offset := 0
	for _, l := range net.Layers() {
		names = append(names, l.Name)
		if l.Offset() != offset {
			t.Errorf("%s is at %d, want %d", l.Name, l.Offset(), offset)
		}
		offset += l.Len()
	}
	if want := []string{"a", "b", "c", "d", "head", "e", "f", "g"}; !slices.Equal(names, want) || offset != net.Weights() {
		t.Errorf("layers %v with %d weights of %d, want %v", names, offset, net.Weights(), want)
	}
	if shape := net.Layers()[7].Tensors[0].Shape; !slices.Equal(shape, []int{2, 17 + 18 + 21}) {
		t.Errorf("g has shape %v", shape)
	}
	// Per example, a matrix of r×c costs 2rc for the output, 2rc for the gradient of the
	// weights, and 2rc for the gradient of the inputs, except for the columns of the
	// network's input.
	matrices := 18*21 + 18*18 + 2*39 + 17*39 + 2*56
	ofInput := 18*21 + 2*21 + 17*21 + 2*21
	forward, training := net.Flops(5)
	if forward != int64(5*2*matrices) || training != int64(5*2*(3*matrices-ofInput)) {
		t.Errorf("%d operations forward and %d in training, want %d and %d", forward, training, 10*matrices, 10*(3*matrices-ofInput))
	}
}

// TestConcatenation checks that a layer over several blocks gives the same results as a layer
// over one block that already is their concatenation, for one window and for a batch.
func TestConcatenation(t *testing.T) {
	whole, err := nn.Build(1, 30, nn.Linear{Name: "y", Out: 3})
	if err != nil {
		t.Fatal(err)
	}
	// All x are positive, so the PReLU layer does not change them.
	parts, err := nn.Build(1, 15, nn.PReLU{Name: "p"}, nn.Linear{Name: "y", Out: 3, From: []string{"p", "input"}})
	if err != nil {
		t.Fatal(err)
	}
	w := make([]float32, whole.Weights())
	for i := range w {
		w[i] = float32(i%7) - 3
	}
	weights := append(make([]float32, 15), w...)
	for _, k := range kernel.Available() {
		for _, batch := range []int{1, 5} {
			x, twice := make([]float32, 15*batch), make([]float32, 30*batch)
			for i := range x {
				x[i] = float32(i%11 + 1)
				twice[i/15*30+i%15], twice[i/15*30+15+i%15] = x[i], x[i]
			}
			got, want := make([]float32, 3*batch), make([]float32, 3*batch)
			parts.NewWorkspace(k, batch).Predict(got, weights, x)
			whole.NewWorkspace(k, batch).Predict(want, w, twice)
			if !slices.Equal(got, want) { // whole numbers, so the sums are exact
				t.Errorf("%s, batch of %d: %v, want %v", k, batch, got, want)
			}
		}
	}
}

// TestRandomGraphs compares outputs and gradients of random graphs with the reference, so that
// all orders of a block's readers are tested.
func TestRandomGraphs(t *testing.T) {
	graphs := 40
	if testing.Short() {
		graphs = 8 // emulation is slow
	}
	for seed := range graphs {
		rng := rand.New(rand.NewPCG(7, uint64(seed)))
		inputs := 1 + rng.IntN(20)
		blocks := randomBlocks(rng, inputs)
		net, err := nn.Build(1, inputs, blocks...)
		if err != nil {
			t.Fatalf("graph %d: %+v: %v", seed, blocks, err)
		}
		for _, k := range kernel.Available() {
			t.Run(fmt.Sprintf("%d/%s", seed, k), func(t *testing.T) {
				for _, batch := range []int{1, 18} {
					w, x, y := setup(net, batch)
					nntest.CheckGradient(t, net, k, w, x, y, nn.MSE{})
					out := make([]float32, net.Outputs())
					net.NewWorkspace(k, 1).Predict(out, w, x[:inputs])
					for o, want := range nntest.Outputs(net, nntest.Float64s(w), nntest.Float64s(x[:inputs])) {
						if math.Abs(float64(out[o])-want) > 1e-5*(1+math.Abs(want)) {
							t.Errorf("output %d is %g, want %g", o, out[o], want)
						}
					}
				}
				if t.Failed() {
					t.Logf("%+v", blocks)
				}
			})
		}
	}
}

// randomBlocks returns blocks that read random earlier blocks. The last block reads all blocks
// that no other block reads.
func randomBlocks(rng *rand.Rand, inputs int) []nn.Block {
	var (
		blocks []nn.Block
		names  = []string{nn.Input}
		rows   = map[string]int{nn.Input: inputs}
		read   = map[string]bool{}
	)
	add := func(b nn.Block, name string, width int, from ...string) {
		for _, f := range from {
			read[f] = true
		}
		blocks, names, rows[name] = append(blocks, b), append(names, name), width
	}
	for i := range 3 + rng.IntN(8) {
		name, previous := fmt.Sprint("b", i), names[len(names)-1]
		from := slices.Clone(names)
		rng.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
		switch rng.IntN(4) {
		case 0:
			add(nn.PReLU{Name: name}, name, rows[previous], previous)
		case 1: // all blocks with as many rows as the first one, up to three
			width := rows[from[0]]
			from = slices.DeleteFunc(from, func(f string) bool { return rows[f] != width })
			if len(from) > 1 {
				from = from[:min(len(from), 3)]
				add(nn.Add{Name: name, From: from}, name, width, from...)
				break
			}
			fallthrough
		default:
			width := []int{inputs, 5, 16, 17}[rng.IntN(4)]
			if rng.IntN(3) == 0 {
				add(nn.Linear{Name: name, Out: width}, name, width, previous)
			} else {
				from = from[:1+rng.IntN(min(len(from), 3))]
				add(nn.Linear{Name: name, Out: width, From: from}, name, width, from...)
			}
		}
	}
	from := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return read[name] })
	return append(blocks, nn.Linear{Name: "last", Out: 2, From: from})
}
