package forecast

import (
	"fmt"
	"math"
	"time"

	"loadstar/forecast/calibrate"
	"loadstar/metric"
	"loadstar/series"
)

// ClientScore is the result of scoring one client.
type ClientScore struct {
	ID string
	// Overall is the score of the point forecasts over all targets. Steps[i] is the score
	// over target i of each origin.
	Overall metric.Point
	Steps   []metric.Point
	// Model is the score of the model's own point forecasts. It differs from Overall if
	// forecasts are blended with the reference.
	Model metric.Point
	// Quantiles is the score of the model's own quantiles. Calibrated is the score of the
	// quantiles after blending and calibration. Both are nil if the model forecasts only points,
	// and Calibrated is nil if forecasts were not calibrated.
	Quantiles, Calibrated *metric.Quantiles
	// Reference is the forecast to which the relative MAE refers.
	Reference Reference
	// Skipped counts the examples that the baseline could not forecast.
	Skipped int
}

// Forecast is one forecast value, with the actual value.
type Forecast struct {
	Client   string
	Cutoff   time.Time // the end of the newest known interval
	Time     time.Time // the start of the forecast interval
	Forecast float64
	Actual   float64
	// Reference is the reference forecast, or NaN if it is unknown.
	Reference float64
	// Levels contains the forecasts of all quantiles, or is nil if the model forecasts only
	// points. It is valid only until the function that receives it returns.
	Levels []float64
}

// tally accumulates the scores of one client.
type tally struct {
	client     Client
	reference  Reference
	each       func(Forecast) error // may be nil
	levels     []float64            // nil if there are only point forecasts
	point      int                  // index of the point forecast in the levels
	width      int                  // forecasts per target
	tracker    *calibrate.Tracker   // nil if forecasts are scored without correction
	observed   int                  // the first step that the tracker has not seen
	recorded   int                  // the period of the newest issue that the tracker recorded
	warm       bool                 // the forecasts are only shown to the tracker, not scored
	served     []float64
	references []float64
	blended    []float64 // the references with which forecasts are blended
	score      ClientScore
}

func newTally(frame *series.Framer, m series.Meter, r Reference, each func(Forecast) error) *tally {
	l := frame.Layout()
	return &tally{
		client: Client{Frame: frame, Meter: m}, reference: r.For(l), each: each, width: 1,
		references: make([]float64, l.Targets), blended: make([]float64, l.Targets),
		score: ClientScore{ID: m.ID, Steps: make([]metric.Point, l.Targets), Reference: r.For(l)},
	}
}

// quantiles prepares the tally for a forecast at each of the given levels.
func (t *tally) quantiles(levels []float64, point int) (err error) {
	t.levels, t.point, t.width = levels, point, len(levels)
	t.score.Quantiles, err = metric.NewQuantiles(levels...)
	return err
}

// calibrate makes the tally correct forecasts before it scores them.
func (t *tally) calibrate(blend bool) (err error) {
	frame := t.client.Frame
	l := frame.Layout()
	t.tracker, err = calibrate.New(calibrate.Config{
		Levels: t.levels, Point: t.point, Horizon: l.Horizon, Targets: l.Targets, StepsPerDay: frame.StepsPerDay(), Correct: blend,
	})
	t.recorded = -1
	if err == nil && t.levels != nil {
		t.score.Calibrated, err = metric.NewQuantiles(t.levels...)
	}
	return err
}

// add scores the forecasts that were made when step last was the newest step with known load.
// rows contains one row per target, with a forecast in kW for each level in ascending order.
func (t *tally) add(last int, rows []float64) error {
	m, horizon := t.client.Meter, t.client.Frame.Layout().Horizon
	for i, v := range rows {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("meter %s: the forecast for %s is not a number", m.ID, t.client.Frame.Time(m, last+horizon+i/t.width))
		}
	}
	t.client.reference(t.references, last, t.reference)
	served := rows
	if t.tracker != nil {
		served = t.correct(last, rows)
	}
	if t.warm {
		return nil
	}
	for i, reference := range t.references {
		raw, row := rows[i*t.width:][:t.width], served[i*t.width:][:t.width]
		f := Forecast{
			Client: m.ID, Cutoff: t.client.Frame.Time(m, last+1), Time: t.client.Frame.Time(m, last+horizon+i),
			Forecast: row[t.point], Actual: float64(m.Load[last+horizon+i]), Reference: reference,
		}
		if t.levels != nil {
			f.Levels = row
		}
		if err := t.count(i, f, raw); err != nil {
			return fmt.Errorf("meter %s: %w", m.ID, err)
		}
		if t.each == nil {
			continue
		}
		if err := t.each(f); err != nil {
			return err
		}
	}
	return nil
}

// correct returns the forecasts after blending and calibration.
func (t *tally) correct(last int, rows []float64) []float64 {
	for ; t.observed <= last; t.observed++ {
		t.tracker.Observe(t.observed, t.client.load(t.observed))
	}
	t.served = append(t.served[:0], rows...)
	t.client.reference(t.blended, last, blendReference(t.client.Frame.Layout()))
	// Record only one issue per period, like a client that makes forecasts more often.
	if period := (last + 1) / t.tracker.Every(); period != t.recorded {
		t.recorded = period
		t.tracker.Issue(last, t.served, t.blended)
	} else {
		t.tracker.Correct(last, t.served, t.blended)
	}
	return t.served
}

// count adds a forecast of target i to the scores. raw contains the model's own forecasts.
func (t *tally) count(i int, f Forecast, raw []float64) error {
	s := &t.score
	for _, p := range [...]*metric.Point{&s.Overall, &s.Steps[i]} {
		if err := p.Add(f.Forecast, f.Actual, f.Reference); err != nil {
			return err
		}
	}
	if err := s.Model.Add(raw[t.point], f.Actual, f.Reference); err != nil {
		return err
	}
	if s.Quantiles != nil {
		if err := s.Quantiles.Add(raw, f.Actual); err != nil {
			return err
		}
	}
	if s.Calibrated != nil {
		return s.Calibrated.Add(f.Levels, f.Actual)
	}
	return nil
}
