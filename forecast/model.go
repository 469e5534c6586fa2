// Package forecast provides the models that forecast load: the networks of the papers,
// with the layer names of PyTorch, the division of their layers into shared and personal
// ones, and their weight files. It also provides baselines, backtests and scoring.
package forecast

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"loadstar/nn"
)

// Shape has the sizes of a model's inputs and outputs. If a field is zero, the model uses
// the size in its paper.
type Shape struct {
	Lookback int // steps of a window
	Inputs   int // features of a step
	Outputs  int // values forecast for a window
}

// Defaults are the settings that a model's paper uses.
type Defaults struct {
	Lookback int // steps of a window
	Horizon  int // steps from the last input to the first target
	Targets  int // steps that are forecast
	// Inputs are the features of a step, in the syntax of series.ParseInput.
	Inputs []string
	// Train and Validation are shares of a client's time span. The remaining share is for
	// tests.
	Train, Validation float64
}

// Model is a trainable forecaster: an architecture named after its paper. It contains no
// weights and is safe for concurrent use.
type Model struct {
	name string
	net  *nn.Net
}

// architecture describes a model whose shape is not known yet.
type architecture struct {
	name     string
	summary  string
	defaults Defaults
	blocks   func(outputs int) []nn.Block
}

// boseInputs are the inputs of bose2023 and bose2024.
var boseInputs = []string{"load", "time_of_day", "day_of_week", "temperature", "wind", "floor_area", "wall_area", "window_area"}

var architectures = []architecture{
	{
		name:     "bose2023",
		summary:  "two stacked LSTMs of 20, all hidden states, head 120-60",
		defaults: Defaults{Lookback: 12, Horizon: 1, Targets: 1, Inputs: boseInputs, Train: 0.8, Validation: 0.1},
		blocks: func(outputs int) []nn.Block {
			return append([]nn.Block{nn.LSTM{Name: "lstm", Hidden: 20, Layers: 2}}, head(outputs, 120, 60)...)
		},
	},
	{
		name:     "bose2024",
		summary:  "one LSTM of 25, all hidden states, head 150-75",
		defaults: Defaults{Lookback: 12, Horizon: 4, Targets: 1, Inputs: boseInputs, Train: 0.8, Validation: 0.1},
		blocks: func(outputs int) []nn.Block {
			return append([]nn.Block{nn.LSTM{Name: "lstm", Hidden: 25}}, head(outputs, 150, 75)...)
		},
	},
	{
		name:    "fekri2023",
		summary: "one LSTM of 32, last hidden state, linear head",
		// The paper has no validation split and does not state its lookback; 24 steps is
		// our choice.
		defaults: Defaults{
			Lookback: 24, Horizon: 1, Targets: 8, Train: 0.7,
			Inputs: []string{"load", "day_of_year", "day_of_month", "week_of_year", "day_of_week", "hour"},
		},
		blocks: func(outputs int) []nn.Block {
			return []nn.Block{nn.LSTM{Name: "lstm", Hidden: 32, Last: true}, nn.Linear{Name: "fc", Out: outputs}}
		},
	},
}

// head returns a fully connected network with PReLU between its layers. The layers have the
// names that an nn.Sequential called fc gives them.
func head(outputs int, widths ...int) []nn.Block {
	var blocks []nn.Block
	name := func() string { return fmt.Sprintf("fc.%d", len(blocks)) }
	for _, w := range widths {
		blocks = append(blocks, nn.Linear{Name: name(), Out: w})
		blocks = append(blocks, nn.PReLU{Name: name()})
	}
	return append(blocks, nn.Linear{Name: name(), Out: outputs})
}

// Summary is the name and a short description of a model or baseline.
type Summary struct{ Name, About string }

// Models returns the available models.
func Models() []Summary {
	var all []Summary
	for _, a := range architectures {
		all = append(all, Summary{a.name, a.summary})
	}
	return all
}

// names joins the names in all for an error message.
func names(all []Summary) string {
	var s []string
	for _, x := range all {
		s = append(s, x.Name)
	}
	return strings.Join(s, ", ")
}

// DefaultsOf returns the settings that a model's paper uses, or false if there is no such
// model. The caller must not change the Inputs of the result.
func DefaultsOf(name string) (Defaults, bool) {
	for _, a := range architectures {
		if a.name == name {
			return a.defaults, true
		}
	}
	return Defaults{}, false
}

// New returns the model with the given name and shape.
func New(name string, shape Shape) (*Model, error) {
	for _, a := range architectures {
		if a.name != name {
			continue
		}
		s := Shape{Lookback: a.defaults.Lookback, Inputs: len(a.defaults.Inputs), Outputs: a.defaults.Targets}
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

// Name returns the name of the model, which is that of its paper.
func (m *Model) Name() string { return m.name }

// Net returns the model's architecture.
func (m *Model) Net() *nn.Net { return m.net }

// InitialWeights returns random initial weights with the same distribution as PyTorch's.
// They come from our own random number generator, so the same seed gives the same weights
// on every platform.
func (m *Model) InitialWeights(seed uint64) []float32 {
	const purpose = 0x696e69742d77 // makes this random stream differ from others with the same seed
	w := make([]float32, m.net.Weights())
	m.net.Init(w, rand.New(rand.NewPCG(seed, purpose)))
	return w
}
