package forecast

import (
	"fmt"
	"math"

	"loadstar/metric"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// tally accumulates the scores of one client.
type tally struct {
	frame *series.Framer
	meter series.Meter
	each  func(Forecast) error // may be nil
	score ClientScore
}

func newTally(frame *series.Framer, m series.Meter, each func(Forecast) error) *tally {
	return &tally{frame, m, each, ClientScore{ID: m.ID, Steps: make([]metric.Point, frame.Layout().Targets)}}
}

// add scores the forecasts of all targets, in kW, that were made when step last was the
// newest step with known load.
func (t *tally) add(last int, out []float64) error {
	naive := float64(t.meter.Load[last])
	horizon := t.frame.Layout().Horizon
	for i, v := range out {
		at := last + horizon + i
		actual := float64(t.meter.Load[at])
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("meter %s: the forecast for %s is not a number", t.meter.ID, t.frame.Time(t.meter, at))
		}
		for _, p := range [...]*metric.Point{&t.score.Overall, &t.score.Steps[i]} {
			if err := p.Add(v, actual, naive); err != nil {
				return fmt.Errorf("meter %s: %w", t.meter.ID, err)
			}
		}
		if t.each == nil {
			continue
		}
		if err := t.each(Forecast{t.meter.ID, t.frame.Time(t.meter, last+1), t.frame.Time(t.meter, at), v, actual}); err != nil {
			return err
		}
	}
	return nil
}

// scoreBatch is the number of examples to forecast at a time. A larger batch would not fit
// into the second-level cache.
const scoreBatch = 64

// Scorer forecasts with a model and scores the forecasts. One goroutine may use it at a
// time, for any number of clients.
type Scorer struct {
	net  *nn.Net
	loss nn.Loss
	// perTarget is the number of outputs per target. Among these, the output with index
	// point is the point forecast. targets is the number of targets of an example.
	perTarget, point, targets int

	ws        *nn.Workspace
	at        []series.Example // of whole origins
	x, y, out []float32
	points    []float64 // for all targets of one origin
}

// NewScorer returns a scorer for a model that was trained with the given loss. The point
// forecast of a pinball model is the quantile nearest to 0.5.
func NewScorer(m *Model, k *kernel.Set, loss nn.Loss) *Scorer {
	s := &Scorer{net: m.net, loss: loss, perTarget: loss.Outputs(1), ws: m.net.NewWorkspace(k, scoreBatch)}
	if p, ok := loss.(*nn.Pinball); ok {
		for o := range s.perTarget {
			if math.Abs(p.Quantile(o)-0.5) < math.Abs(p.Quantile(s.point)-0.5) {
				s.point = o
			}
		}
	}
	s.targets = m.net.Outputs() / s.perTarget
	return s
}

// reserve allocates buffers for n examples of origins with the given number of targets.
func (s *Scorer) reserve(n, targets int) {
	if cap(s.at) < n {
		s.at = make([]series.Example, 0, n)
		s.x = make([]float32, n*s.net.Lookback()*s.net.Inputs())
		s.y = make([]float32, n*s.targets)
		s.out = make([]float32, n*s.net.Outputs())
	}
	if cap(s.points) < targets {
		s.points = make([]float64, targets)
	}
	s.at, s.points = s.at[:0], s.points[:targets]
}

// Score forecasts a meter's origins in the given split with the weights w. If limit is
// above 0 and there are more origins than that, it forecasts only limit evenly spaced
// ones. It returns the errors in kW, and the mean loss in scaled units. The loss is NaN if
// there are no origins. Unless each is nil, Score calls it with every forecast, in
// chronological order.
func (s *Scorer) Score(w []float32, m series.Meter, data series.Examples, part series.Part, limit int, each func(Forecast) error) (ClientScore, float64, error) {
	t := newTally(data.Frame(), m, each)
	size, targets, per := data.Inputs(), data.Frame().Layout().Targets, data.PerOrigin()
	if size != s.net.Lookback()*s.net.Inputs() || s.targets*per != targets {
		return t.score, 0, fmt.Errorf("the model takes %d inputs and forecasts %d targets at a time; the data has %d inputs and %d targets",
			s.net.Lookback()*s.net.Inputs(), s.targets, size, targets/per)
	}
	s.reserve(max(scoreBatch, per), targets)
	most := max(scoreBatch/per, 1) * per
	all := data.Len(part)
	n := all
	if limit > 0 {
		n = min(n, limit)
	}
	var loss float64
	origin, taken := 0, 0
	err := data.Each(part, func(last int) error {
		// Score only the origins in the middle of n equal stretches.
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
	return t.score, loss / float64(n*per), err
}

// batch forecasts the examples in s.at, adds the forecasts to the tally, and returns the sum
// of their losses.
func (s *Scorer) batch(w []float32, data series.Examples, t *tally) (float64, error) {
	n, outputs := len(s.at), s.net.Outputs()
	x, y, out := s.x[:n*s.net.Lookback()*s.net.Inputs()], s.y[:n*s.targets], s.out[:n*outputs]
	data.Gather(x, y, s.at)
	s.ws.Predict(out, w, x)
	done := 0 // targets of the current origin
	for e, at := range s.at {
		for i := range s.targets {
			s.points[done] = float64(data.Unscale(at, out[e*outputs+i*s.perTarget+s.point]))
			done++
		}
		if done < len(s.points) {
			continue
		}
		if err := t.add(at.Last, s.points); err != nil {
			return 0, err
		}
		done = 0
	}
	return nn.MeanLoss(s.loss, out, y) * float64(n), nil
}
