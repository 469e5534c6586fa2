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

// scoreBatch is the number of windows to forecast at a time. A larger batch would not fit
// into the second-level cache.
const scoreBatch = 64

// Scorer forecasts with a model and scores the forecasts. One goroutine may use it at a
// time, for any number of clients.
type Scorer struct {
	net  *nn.Net
	loss nn.Loss
	// perTarget is the number of outputs per target. Among these, the output with index
	// point is the point forecast.
	perTarget, point int

	ws        *nn.Workspace
	lasts     []int
	x, y, out []float32
	points    []float64
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
	targets := m.net.Outputs() / s.perTarget
	s.lasts = make([]int, 0, scoreBatch)
	s.x = make([]float32, scoreBatch*m.net.Lookback()*m.net.Inputs())
	s.y = make([]float32, scoreBatch*targets)
	s.out = make([]float32, scoreBatch*m.net.Outputs())
	s.points = make([]float64, targets)
	return s
}

// Score forecasts a meter's windows in the given split with the weights w. If limit is
// above 0 and there are more windows than that, it forecasts only limit evenly spaced
// ones. It returns the errors in kW, and the mean loss in scaled units. The loss is NaN if
// there are no windows. Unless each is nil, Score calls it with every forecast, in
// chronological order.
func (s *Scorer) Score(w []float32, m series.Meter, win *series.Windows, part series.Part, limit int, each func(Forecast) error) (ClientScore, float64, error) {
	t := newTally(win.Frame(), m, each)
	l := win.Frame().Layout()
	if l.Lookback != s.net.Lookback() || len(l.Inputs) != s.net.Inputs() || s.loss.Outputs(l.Targets) != s.net.Outputs() {
		return t.score, 0, fmt.Errorf("the model takes windows of %d steps by %d inputs and has %d outputs; the data has %d by %d, and %d targets",
			s.net.Lookback(), s.net.Inputs(), s.net.Outputs(), l.Lookback, len(l.Inputs), l.Targets)
	}
	all := win.Len(part)
	n := all
	if limit > 0 {
		n = min(n, limit)
	}
	var loss float64
	s.lasts = s.lasts[:0]
	window, taken := 0, 0
	err := win.Each(part, func(last int) error {
		// Score only the windows in the middle of n equal stretches.
		if window++; window-1 != (2*taken+1)*all/(2*n) {
			return nil
		}
		taken++
		if s.lasts = append(s.lasts, last); len(s.lasts) < scoreBatch && taken < n {
			return nil
		}
		sum, err := s.batch(w, win, t)
		loss += sum
		s.lasts = s.lasts[:0]
		return err
	})
	return t.score, loss / float64(n), err
}

// batch forecasts the windows in lasts, adds the forecasts to the tally, and returns the sum
// of their losses.
func (s *Scorer) batch(w []float32, win *series.Windows, t *tally) (float64, error) {
	n, outputs := len(s.lasts), s.net.Outputs()
	x, out := s.x[:n*s.net.Lookback()*s.net.Inputs()], s.out[:n*outputs]
	win.Gather(x, s.y[:n*len(s.points)], s.lasts)
	s.ws.Predict(out, w, x)
	for e, last := range s.lasts {
		for i := range s.points {
			s.points[i] = float64(win.Unscale(out[e*outputs+i*s.perTarget+s.point]))
		}
		if err := t.add(last, s.points); err != nil {
			return 0, err
		}
	}
	return nn.MeanLoss(s.loss, out, s.y[:n*len(s.points)]) * float64(n), nil
}
