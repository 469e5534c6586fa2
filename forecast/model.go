// Package forecast holds the models that forecast load: the networks of the
// papers with their layers named as PyTorch names them, how their layers are
// split into shared and personal ones, and their weights on disk.
package forecast

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"loadstar/nn"
)

// Shape is the outside of a model. A zero field takes the value of the model's
// paper; fekri2023 does not say how far it looks back, and 24 steps are ours.
type Shape struct {
	Lookback int // steps of a window
	Inputs   int // features of a step
	Outputs  int // values forecast for a window
}

// Model is a forecaster whose weights are learned: an architecture under the
// name of its paper. It holds no weights and is safe for concurrent use.
type Model struct {
	name string
	net  *nn.Net
}

// architecture is a model before its shape is known.
type architecture struct {
	name    string
	summary string
	shape   Shape // of the paper
	blocks  func(outputs int) []nn.Block
}

var architectures = []architecture{
	{
		name:    "bose2023",
		summary: "two stacked LSTMs of 20, all hidden states, head 120-60",
		shape:   Shape{Lookback: 12, Inputs: 8, Outputs: 1},
		blocks: func(outputs int) []nn.Block {
			return append([]nn.Block{nn.LSTM{Name: "lstm", Hidden: 20, Layers: 2}}, head(outputs, 120, 60)...)
		},
	},
	{
		name:    "bose2024",
		summary: "one LSTM of 25, all hidden states, head 150-75",
		shape:   Shape{Lookback: 12, Inputs: 8, Outputs: 1},
		blocks: func(outputs int) []nn.Block {
			return append([]nn.Block{nn.LSTM{Name: "lstm", Hidden: 25}}, head(outputs, 150, 75)...)
		},
	},
	{
		name:    "fekri2023",
		summary: "one LSTM of 32, last hidden state, linear head",
		shape:   Shape{Lookback: 24, Inputs: 6, Outputs: 8},
		blocks: func(outputs int) []nn.Block {
			return []nn.Block{nn.LSTM{Name: "lstm", Hidden: 32, Last: true}, nn.Linear{Name: "fc", Out: outputs}}
		},
	},
}

// head is a fully connected network with PReLU between its layers, named as the
// members of an nn.Sequential called fc.
func head(outputs int, widths ...int) []nn.Block {
	var blocks []nn.Block
	name := func() string { return fmt.Sprintf("fc.%d", len(blocks)) }
	for _, w := range widths {
		blocks = append(blocks, nn.Linear{Name: name(), Out: w})
		blocks = append(blocks, nn.PReLU{Name: name()})
	}
	return append(blocks, nn.Linear{Name: name(), Out: outputs})
}

// Summary is a name that can be asked for, and what it stands for.
type Summary struct{ Name, About string }

// Models returns the models there are.
func Models() []Summary {
	var all []Summary
	for _, a := range architectures {
		all = append(all, Summary{a.name, a.summary})
	}
	return all
}

// names lists the names in a message.
func names(all []Summary) string {
	var s []string
	for _, x := range all {
		s = append(s, x.Name)
	}
	return strings.Join(s, ", ")
}

// New returns the model with the given name and shape.
func New(name string, shape Shape) (*Model, error) {
	for _, a := range architectures {
		if a.name != name {
			continue
		}
		s := a.shape
		for _, f := range []struct {
			dst *int
			v   int
		}{{&s.Lookback, shape.Lookback}, {&s.Inputs, shape.Inputs}, {&s.Outputs, shape.Outputs}} {
			if f.v != 0 {
				*f.dst = f.v
			}
		}
		net, err := nn.Build(s.Lookback, s.Inputs, a.blocks(s.Outputs)...)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", name, err)
		}
		return &Model{name, net}, nil
	}
	return nil, fmt.Errorf("no model %q; there are %s", name, names(Models()))
}

// Name returns the name of the model's paper.
func (m *Model) Name() string { return m.name }

// Net returns the model's architecture.
func (m *Model) Net() *nn.Net { return m.net }

// InitialWeights returns new weights, drawn as PyTorch draws them from a
// generator of ours: the same seed gives the same weights on every platform.
func (m *Model) InitialWeights(seed uint64) []float32 {
	const purpose = 0x696e69742d77 // keeps this stream apart from others of the seed
	w := make([]float32, m.net.Weights())
	m.net.Init(w, rand.New(rand.NewPCG(seed, purpose)))
	return w
}
