// Package forecast provides the networks of the papers and our own network, all with PyTorch's
// layer names. It divides their layers into shared and personal layers, and reads and writes
// their weight files. It also provides baselines, backtests and scoring.
package forecast

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"

	"loadstar/nn"
)

// Shape contains the sizes of a model's inputs and outputs. If a size is zero, the model's
// default is used.
type Shape struct {
	// Lookback is the number of steps of a window. It has no effect on a model of rows of
	// features (see [Defaults]), whose network always has a window of one row.
	Lookback int
	Inputs   int // features of a step or of a row
	Outputs  int // values forecast for a window or a row
	// Naive is the position of the input, counted from 0, that equals the naive forecast, or
	// -1 if there is none. The initial forecasts of dense are close to it. The other models
	// ignore it.
	Naive int
}

// Defaults are a model's default settings, taken from its paper if the paper states them.
type Defaults struct {
	Lookback int // steps of a window, or hours of history that a row of features may read
	Horizon  int // steps from the last input to the first target
	Targets  int // steps that are forecast
	// Inputs are the features of a step, in the syntax of series.ParseInput. If Rows is set,
	// Inputs is nil: the inputs are all groups of features that the dataset has.
	Inputs []string
	// Rows means that an example is a row of features for one target instead of a window with
	// all targets.
	Rows bool
	// Quantiles are the quantiles that the model forecasts with the pinball loss. If there
	// are none, it makes point forecasts.
	Quantiles []float64
	// Train and Validation are shares of a client's time span. The rest is for testing.
	Train, Validation float64
}

// PerExample returns the number of targets of one example, given the number of steps that are
// forecast.
func (d Defaults) PerExample(targets int) int {
	if d.Rows {
		return 1
	}
	return targets
}

// Model is a trainable forecaster: an architecture with a name. It contains no weights and is
// safe for concurrent use.
type Model struct {
	name    string
	net     *nn.Net
	shape   Shape
	initial initializer
}

// initializer sets initial weights.
type initializer func(net *nn.Net, s Shape, w []float32, rng *rand.Rand)

// architecture describes a model whose shape is not known yet.
type architecture struct {
	name     string
	summary  string
	defaults Defaults
	inputs   int // default number of inputs; 0 means the length of defaults.Inputs
	blocks   func(outputs int) []nn.Block
	check    func(Shape) error // refuses a shape; may be nil
	initial  initializer       // nil means PyTorch's default initialization
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
	dense,
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
		s := a.fill(shape)
		if a.check != nil {
			if err := a.check(s); err != nil {
				return nil, fmt.Errorf("model %s: %w", name, err)
			}
		}
		net, err := nn.Build(s.Lookback, s.Inputs, a.blocks(s.Outputs)...)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", name, err)
		}
		return &Model{name, net, s, a.initial}, nil
	}
	return nil, fmt.Errorf("no model %q; there are %s", name, names(Models()))
}

// fill returns the shape with zero sizes replaced by their defaults.
func (a *architecture) fill(s Shape) Shape {
	d := &a.defaults
	for _, f := range []struct {
		size  *int
		usual int
	}{
		{&s.Lookback, d.Lookback},
		{&s.Inputs, max(a.inputs, len(d.Inputs))},
		{&s.Outputs, d.PerExample(d.Targets) * max(len(d.Quantiles), 1)},
	} {
		*f.size = cmp.Or(*f.size, f.usual)
	}
	if d.Rows {
		s.Lookback = 1
	}
	return s
}

// Name returns the name of the model. Most models have the name of their paper.
func (m *Model) Name() string { return m.name }

// Net returns the model's architecture.
func (m *Model) Net() *nn.Net { return m.net }

// InitialWeights returns random initial weights. For the papers' models, their distribution is
// the same as PyTorch's. They come from our own random number generator, so the same seed gives
// the same weights on every platform.
func (m *Model) InitialWeights(seed uint64) []float32 {
	const purpose = 0x696e69742d77 // makes this random stream differ from others with the same seed
	w := make([]float32, m.net.Weights())
	rng := rand.New(rand.NewPCG(seed, purpose))
	if m.initial == nil {
		m.net.Init(w, rng)
	} else {
		m.initial(m.net, m.shape, w, rng)
	}
	return w
}
