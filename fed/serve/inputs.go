package serve

import (
	"fmt"

	"loadstar/forecast"
	"loadstar/series"
)

// Inputs contains a model's inputs at a cutoff, and the forecasts from them.
type Inputs struct {
	// X contains the inputs of each example in row-major order. There is one example per step if
	// the model forecasts each step separately, and otherwise a single example.
	X        []float32
	Examples int
	// KW contains the model's own forecasts in kW, with a row for each step and a value for each
	// level. The forecasts are not corrected by earlier errors.
	KW []float64
}

// Inputs returns the inputs of a meter that [Tails.Meter] returned, for users who compute the
// forecasts themselves.
func (f *Frame) Inputs(m series.Meter, c Client) (Inputs, error) {
	x := f.Forecaster(m, c).(*forecaster)
	cutoff := f.tails.Cutoff
	if ready, reason := x.Ready(cutoff); ready == series.Unready {
		return Inputs{}, fmt.Errorf("meter %s: the model cannot forecast: %s", m.ID, reason)
	}
	data, last := x.examples, x.last(cutoff)
	if data.Ready(last) == series.Unready {
		data = x.fill(cutoff)
	}
	per := data.PerOrigin()
	at := make([]series.Example, per)
	for i := range at {
		at[i] = series.Example{Last: last, Target: i}
	}
	_, steps := x.Span()
	levels, _ := x.Levels()
	in := Inputs{X: make([]float32, per*data.Inputs()), Examples: per, KW: make([]float64, steps*max(len(levels), 1))}
	data.Gather(in.X, nil, at)
	p := f.model.predictors.Get().(*forecast.Predictor)
	defer f.model.predictors.Put(p)
	return in, p.Predict(in.KW, c.Weights, data, last)
}
