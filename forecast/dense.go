package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"loadstar/nn"
)

// The layer widths of dense: for both layers of the trunk, and for the hidden layer of the
// correction.
const (
	denseTrunk      = 96
	denseCorrection = 64
)

// correctionPrefix is the prefix of the names of correction layers.
const correctionPrefix = "correction."

// dense is a feed-forward network on rows of features. A trunk with a residual connection and a
// linear head compute a forecast; both are meant to be shared. A correction, which is meant to
// be personal, is added to the forecast. The head and the correction also read the features
// directly.
var dense = architecture{
	name:    "dense",
	summary: "rows of features, trunk 96-96 and linear head, plus a correction of 64",
	defaults: Defaults{
		Lookback: 168, Horizon: 1, Targets: 1, Rows: true, Quantiles: []float64{0.1, 0.5, 0.9},
		Train: 0.8, Validation: 0.1,
	},
	inputs: 140, // the features of a forecast one step ahead, with weather
	blocks: func(outputs int) []nn.Block {
		return []nn.Block{
			nn.Linear{Name: "trunk.0", Out: denseTrunk},
			nn.PReLU{Name: "trunk.1"},
			nn.Linear{Name: "trunk.2", Out: denseTrunk},
			nn.PReLU{Name: "trunk.3"},
			nn.Add{Name: "sum", From: []string{"trunk.3", "trunk.1"}},
			nn.Linear{Name: "head", Out: outputs, From: []string{"sum", nn.Input}},
			nn.Linear{Name: correctionPrefix + "0", Out: denseCorrection, From: []string{"sum", nn.Input}},
			nn.PReLU{Name: correctionPrefix + "1"},
			nn.Linear{Name: correctionPrefix + "2", Out: outputs, From: []string{correctionPrefix + "1", "sum", nn.Input}},
			nn.Add{Name: "out", From: []string{"head", correctionPrefix + "2"}},
		}
	},
	check: func(s Shape) error {
		if s.Naive < -1 || s.Naive >= s.Inputs {
			return fmt.Errorf("input %d cannot be the naive forecast: there are %d inputs, counted from 0; use -1 if none is", s.Naive, s.Inputs)
		}
		return nil
	},
	initial: denseWeights,
}

// denseWeights sets initial weights that make every quantile of the forecast the naive forecast
// plus a small contribution from the trunk. The correction's output is zero until it is
// trained.
func denseWeights(net *nn.Net, s Shape, w []float32, rng *rand.Rand) {
	for _, l := range net.Layers() {
		weights := w[l.Offset() : l.Offset()+l.Len()]
		clear(weights)
		switch {
		case l.Kind == nn.KindPReLU:
			for i := range weights {
				weights[i] = 0.25
			}
		case l.Name == correctionPrefix+"2": // all zero
		default:
			matrix := l.Tensors[0]
			// A number that is uniform within ±√(3/n) has variance 1/n.
			bound := math.Sqrt(3 / float64(matrix.Shape[1]))
			if l.Name != "head" {
				nn.Uniform(weights[:matrix.Len()], bound, rng)
				continue
			}
			for ; len(weights) > matrix.Shape[0]; weights = weights[matrix.Shape[1]:] {
				nn.Uniform(weights[:denseTrunk], bound/10, rng)
				if s.Naive >= 0 {
					weights[denseTrunk+s.Naive] = 1
				}
			}
		}
	}
}

// Correction returns the layers that correct the forecast of the other layers, or nil if the
// model has no correction.
func (m *Model) Correction() []nn.Layer {
	var layers []nn.Layer
	for _, l := range m.net.Layers() {
		if strings.HasPrefix(l.Name, correctionPrefix) {
			layers = append(layers, l)
		}
	}
	return layers
}
