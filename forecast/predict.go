package forecast

import (
	"fmt"
	"math"
	"slices"

	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Predictor makes a model's forecasts from single origins, whose targets may be unknown. One
// goroutine may use it at a time, for any number of clients.
type Predictor struct {
	net *nn.Net
	// perTarget is the number of outputs per target, and targets the number of targets of an
	// example. levels contains the quantiles of a pinball model; for other models, it is nil.
	perTarget, targets int
	levels             []float64
	point              int

	ws     *nn.Workspace
	at     []series.Example
	x, out []float32
}

// NewPredictor returns a predictor for a model that was trained with the given loss.
func NewPredictor(m *Model, k *kernel.Set, loss nn.Loss) *Predictor {
	p := &Predictor{net: m.net, perTarget: loss.Outputs(1), ws: m.net.NewWorkspace(k, scoreBatch)}
	p.levels, p.point = levels(loss)
	p.targets = m.net.Outputs() / p.perTarget
	return p
}

// levels returns the quantiles that a model with the given loss forecasts, and the index of the
// point forecast, which is the quantile nearest to 0.5. The results are nil and 0 if the model
// forecasts only points.
func levels(loss nn.Loss) (levels []float64, point int) {
	p, ok := loss.(*nn.Pinball)
	if !ok {
		return nil, 0
	}
	levels = p.Quantiles()
	for i, level := range levels {
		if math.Abs(level-0.5) < math.Abs(levels[point]-0.5) {
			point = i
		}
	}
	return levels, point
}

// Levels returns the quantiles that the model forecasts, in ascending order, or nil if it
// forecasts only points. point is the index of the point forecast.
func (p *Predictor) Levels() (levels []float64, point int) { return p.levels, p.point }

// Predict forecasts all targets of an origin in kW, with the weights w. It writes a row for
// each target to out, with one value per level in ascending order.
func (p *Predictor) Predict(out []float64, w []float32, data series.Examples, last int) error {
	per, size := data.PerOrigin(), p.net.Lookback()*p.net.Inputs()
	if data.Inputs() != size || len(out) != per*p.targets*p.perTarget {
		return fmt.Errorf("the model takes %d inputs and forecasts %d targets at a time; the data has %d inputs, and there is room for %d values",
			size, p.targets, data.Inputs(), len(out))
	}
	for from := 0; from < per; from += scoreBatch {
		n := min(per-from, scoreBatch)
		p.at = p.at[:0]
		for target := from; target < from+n; target++ {
			p.at = append(p.at, series.Example{Last: last, Target: target})
		}
		p.out = grown(p.out, n*p.net.Outputs())
		if n == 1 {
			p.x = grown(p.x, size)
			data.Gather(p.x, nil, p.at)
			p.ws.Predict(p.out, w, p.x)
		} else { // columns need no transposition
			x, stride := p.ws.Columns(n)
			data.GatherColumns(x, stride, nil, p.at)
			p.ws.ColumnsPredict(p.out, w)
		}
		for e, at := range p.at {
			for i := range p.targets {
				row := out[((from+e)*p.targets+i)*p.perTarget:][:p.perTarget]
				for q := range row {
					row[q] = float64(data.Unscale(at, p.out[e*p.net.Outputs()+i*p.perTarget+q]))
					if math.IsNaN(row[q]) || math.IsInf(row[q], 0) {
						return fmt.Errorf("the forecast is not a number")
					}
				}
				// A network's value for a higher quantile may be lower than that for a lower
				// quantile.
				slices.Sort(row)
			}
		}
	}
	return nil
}

func grown(x []float32, n int) []float32 {
	if cap(x) < n {
		return make([]float32, n)
	}
	return x[:n]
}
