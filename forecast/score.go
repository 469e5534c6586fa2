package forecast

import (
	"fmt"
	"slices"

	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// scoreBatch is the number of examples to forecast at a time. A larger batch would not fit into
// the L2 cache.
const scoreBatch = 64

// Scorer forecasts with a model and scores the forecasts. One goroutine may use it at a
// time, for any number of clients.
type Scorer struct {
	net  *nn.Net
	loss nn.Loss
	// Reference is the forecast to which the relative MAE refers. Correct makes Serve shift
	// forecasts and blend them with a reference.
	Reference Reference
	Correct   bool
	// Stride is the number of steps between scored origins, counted from the start of the
	// meter's series; 0 means 1.
	Stride int
	// Leave, if not nil, reports whether the scores omit an origin.
	Leave func(last int) bool

	// perTarget is the number of outputs per target. The output with index point is the point
	// forecast. targets is the number of targets of an example. levels contains the quantiles of
	// a pinball model; for other models, it is nil.
	perTarget, point, targets int
	levels                    []float64

	ws        *nn.Workspace
	at        []series.Example // examples of whole origins
	x, y, out []float32
	rows      []float64 // rows for all targets of one origin
}

// NewScorer returns a scorer for a model that was trained with the given loss. The point
// forecast of a pinball model is the quantile nearest to 0.5.
func NewScorer(m *Model, k *kernel.Set, loss nn.Loss) *Scorer {
	s := &Scorer{net: m.net, loss: loss, perTarget: loss.Outputs(1), ws: m.net.NewWorkspace(k, scoreBatch)}
	s.levels, s.point = levels(loss)
	s.targets = m.net.Outputs() / s.perTarget
	return s
}

// Levels returns the quantiles that the model forecasts, in ascending order, or nil if it
// forecasts only points.
func (s *Scorer) Levels() []float64 { return s.levels }

// reserve allocates buffers for n examples of origins with the given number of targets.
func (s *Scorer) reserve(n, targets int) {
	if cap(s.at) < n {
		s.at = make([]series.Example, 0, n)
		s.x = make([]float32, n*s.net.Lookback()*s.net.Inputs())
		s.y = make([]float32, n*s.targets)
		s.out = make([]float32, n*s.net.Outputs())
	}
	if cap(s.rows) < targets*s.perTarget {
		s.rows = make([]float64, targets*s.perTarget)
	}
	s.at, s.rows = s.at[:0], s.rows[:targets*s.perTarget]
}

// Score forecasts a meter's origins in the given split with the weights w. If limit is above 0
// and there are more than limit origins, it forecasts only limit origins, evenly spaced. It
// returns the errors in kW, and the mean loss in scaled units. The loss is NaN if there are no
// origins. If each is not nil, Score calls it with every forecast, in chronological order.
func (s *Scorer) Score(w []float32, m series.Meter, data series.Examples, part series.Part, limit int, each func(Forecast) error) (ClientScore, float64, error) {
	t, err := s.newTally(m, data, each)
	if err != nil {
		return ClientScore{ID: m.ID}, 0, err
	}
	loss, err := s.forecast(w, data, part, limit, t)
	return t.score, loss, err
}

// Serve forecasts a meter's origins in the test split as Score does, but scores the forecasts
// that a client would use. These have calibrated intervals and, if Correct is set, are shifted
// and blended with the reference. All corrections start with the validation split.
func (s *Scorer) Serve(w []float32, m series.Meter, data series.Examples, each func(Forecast) error) (ClientScore, float64, error) {
	t, err := s.newTally(m, data, each)
	if err != nil {
		return ClientScore{ID: m.ID}, 0, err
	}
	if s.Correct || s.levels != nil {
		if err := t.calibrate(s.Correct); err != nil {
			return t.score, 0, err
		}
		t.warm = true
		if _, err := s.forecast(w, data, series.Validation, 0, t); err != nil {
			return t.score, 0, err
		}
		t.warm = false
	}
	loss, err := s.forecast(w, data, series.Test, 0, t)
	return t.score, loss, err
}

// newTally returns a tally for a meter, or an error if its examples do not fit the model.
func (s *Scorer) newTally(m series.Meter, data series.Examples, each func(Forecast) error) (*tally, error) {
	if err := s.Reference.check(); err != nil {
		return nil, err
	}
	size, targets, per := data.Inputs(), data.Frame().Layout().Targets, data.PerOrigin()
	if size != s.net.Lookback()*s.net.Inputs() || s.targets*per != targets {
		return nil, fmt.Errorf("the model takes %d inputs and forecasts %d targets at a time; the data has %d inputs and %d targets",
			s.net.Lookback()*s.net.Inputs(), s.targets, size, targets/per)
	}
	t := newTally(data.Frame(), m, s.Reference, each)
	if s.levels != nil {
		if err := t.quantiles(s.levels, s.point); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// forecast forecasts the origins of a split, or only limit origins, adds the forecasts to the
// tally, and returns the mean loss.
func (s *Scorer) forecast(w []float32, data series.Examples, part series.Part, limit int, t *tally) (float64, error) {
	per := data.PerOrigin()
	s.reserve(max(scoreBatch, per), data.Frame().Layout().Targets)
	most := max(scoreBatch/per, 1) * per
	all := s.origins(data, part)
	n := limited(all, limit)
	var loss float64
	origin, taken := 0, 0
	err := data.Each(part, func(last int) error {
		if !s.scores(last) {
			return nil
		}
		// Score only the origin in the middle of each of n equal stretches.
		if origin++; origin-1 != (2*taken+1)*all/(2*n) {
			return nil
		}
		taken++
		for target := range per {
			s.at = append(s.at, series.Example{Last: last, Target: target})
		}
		if len(s.at) < most && taken < n {
			return nil
		}
		sum, err := s.batch(w, data, t)
		loss += sum
		s.at = s.at[:0]
		return err
	})
	return loss / float64(n*per), err
}

// Scored returns the number of origins that Score forecasts.
func (s *Scorer) Scored(data series.Examples, part series.Part, limit int) int {
	return limited(s.origins(data, part), limit)
}

func limited(origins, limit int) int {
	if limit > 0 {
		return min(origins, limit)
	}
	return origins
}

// origins returns the number of origins of a split that can be scored.
func (s *Scorer) origins(data series.Examples, part series.Part) int {
	if s.Stride <= 1 && s.Leave == nil {
		return data.Len(part)
	}
	n := 0
	_ = data.Each(part, func(last int) error { // the function never returns an error
		if s.scores(last) {
			n++
		}
		return nil
	})
	return n
}

// scores reports whether forecasts from an origin can be scored.
func (s *Scorer) scores(last int) bool {
	return onStride(last, s.Stride) && (s.Leave == nil || !s.Leave(last))
}

// onStride reports whether forecasts from an origin are scored, given the number of steps
// between scored origins. The first scored origin is the last step of the first stride.
func onStride(last, stride int) bool { return stride <= 1 || (last+1)%stride == 0 }

// batch forecasts the examples in s.at, adds the forecasts to the tally, and returns the sum
// of their losses.
func (s *Scorer) batch(w []float32, data series.Examples, t *tally) (float64, error) {
	n, outputs := len(s.at), s.net.Outputs()
	x, y, out := s.x[:n*s.net.Lookback()*s.net.Inputs()], s.y[:n*s.targets], s.out[:n*outputs]
	data.Gather(x, y, s.at)
	s.ws.Predict(out, w, x)
	done := 0 // number of forecasts of the current origin
	for e, at := range s.at {
		for i := range s.targets {
			row := s.rows[done:][:s.perTarget]
			for q := range row {
				row[q] = float64(data.Unscale(at, out[e*outputs+i*s.perTarget+q]))
			}
			// A network's value for a higher quantile may be lower than that for a lower quantile.
			slices.Sort(row)
			done += s.perTarget
		}
		if done < len(s.rows) {
			continue
		}
		if err := t.add(at.Last, s.rows); err != nil {
			return 0, err
		}
		done = 0
	}
	return nn.MeanLoss(s.loss, out, y) * float64(n), nil
}
