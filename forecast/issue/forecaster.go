package issue

import (
	"cmp"
	"math"
	"time"

	"loadstar/series"
)

// Forecaster is a model together with the weights, the scaling and the readings of one client.
type Forecaster interface {
	// Name returns the name of the model, such as day@7.
	Name() string
	// Step returns the interval of the model's forecasts.
	Step() time.Duration
	// Span returns the first forecast step after the cutoff, counted from 1, and the number
	// of steps.
	Span() (first, n int)
	// Levels returns the quantiles of each step in ascending order, or nil if the model
	// forecasts only points. point is the index of the point forecast.
	Levels() (levels []float64, point int)
	// Ready reports whether the model can forecast at a cutoff. The reason explains why it
	// cannot, or which inputs it lacks.
	Ready(cutoff int64) (series.Readiness, Reason)
	// Forecast writes a row for each step of the span, with one value per level in kW, in
	// ascending order. It must not use a load at or after the cutoff.
	Forecast(out []float64, cutoff int64) error
}

// Models are the models that may make a client's forecast.
type Models struct {
	// Own is the client's model, and Generic a model without personal layers. Both may be
	// nil.
	Own, Generic Forecaster
	// Reason explains why Own is nil: NoRelease, NoHead, Refused or StepDiffers. An empty Reason
	// means NoRelease.
	Reason Reason
}

// leastWeight is the weight of the model in the blend below which the rows' reason is
// MostlyWeek.
const leastWeight = 0.2

type answer struct {
	source   Source
	first, n int
	values   []float64 // one row per step, with a value for each of the state's levels
	reason   Reason
	quality  Quality
	weight   float64
}

// ask asks the models for a forecast. If no model can forecast, it returns nil and the reason
// why the client's own model cannot.
func (s *State) ask(models Models, cutoff int64, late bool) (*answer, Reason) {
	why := cmp.Or(models.Reason, NoRelease)
	if models.Own == nil && models.Generic == nil {
		return nil, why
	}
	if models.Own != nil {
		a, reason := s.try(models.Own, &s.own, cutoff, late)
		if a != nil {
			a.source = Model
			return a, ""
		}
		why = reason
	}
	if models.Generic != nil {
		if a, _ := s.try(models.Generic, &s.generic, cutoff, late); a != nil {
			a.source = Generic
			if a.quality = Estimated; a.reason == "" || why != NoRelease {
				a.reason = why // the weakest reason is that there is no model at all
			}
			return a, why
		}
	}
	return nil, why
}

// try asks one model for a forecast, or returns the reason why it cannot forecast.
func (s *State) try(f Forecaster, to **track, cutoff int64, late bool) (*answer, Reason) {
	first, n := f.Span()
	switch {
	case f.Step() != s.c.Step:
		return nil, StepDiffers
	case first < 1 || n < 1 || first+n-1 > maxDays*s.perDay:
		return nil, ModelFailed
	}
	ready, reason := f.Ready(cutoff)
	if ready == series.Unready {
		reason = cmp.Or(reason, Gap)
		return nil, reason
	}
	if !s.takeValues(f, cutoff) {
		return nil, ModelFailed
	}
	t, err := s.trackFor(to, first, n, late)
	if err != nil {
		return nil, ModelFailed
	}
	w := &s.work
	levels, _ := f.Levels()
	a := &answer{first: first, n: n, values: w.values, reason: reason, quality: OK, weight: 1}
	if !late {
		a.weight = t.Weight()
		s.correct(t, a.values, s.references(first, n))
		if to == &s.generic && levels != nil && w.last-t.first < settledDays*s.perDay {
			s.unsettled(a.values, w.raw, levels)
		}
	}
	if levels == nil && (late || !t.ripe(w.last)) {
		s.spread(a.values)
	}
	a.judge(ready, &w.past)
	return a, ""
}

// takeValues writes a model's forecast to s.work, both as raw values and as values for the
// state's levels. It returns false if the model fails or a value is not finite.
func (s *State) takeValues(f Forecaster, cutoff int64) bool {
	w := &s.work
	_, n := f.Span()
	levels, _ := f.Levels()
	width := max(len(levels), 1)
	w.raw = resized(w.raw, n*width)
	if err := f.Forecast(w.raw, cutoff); err != nil {
		return false
	}
	for _, v := range w.raw {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	w.values = resized(w.values, n*len(s.levels))
	for i := range n {
		s.expand(w.values[i*len(s.levels):][:len(s.levels)], w.raw[i*width:][:width], levels)
	}
	return true
}

// trackFor returns the track for forecasts with the given span, which is the current track or a
// new one.
func (s *State) trackFor(to **track, first, n int, late bool) (*track, error) {
	if t := *to; t != nil && t.c.Horizon == first && t.c.Targets == n {
		return t, nil
	}
	t, err := s.newTrack(first, n, true)
	if err != nil {
		return nil, err
	}
	t.Observe(s.work.last, s.work.at(s.work.last))
	if s.due(t) && !late {
		*to = t // otherwise the state would depend on an issue that is not recorded
	}
	return t, nil
}

// judge sets the quality of an answer and, unless the model gave a reason, its reason.
func (a *answer) judge(ready series.Readiness, p *past) {
	switch {
	case a.reason != "":
	case ready == series.Filled:
		a.reason = InputFilled
	case p.flat():
		a.reason = Flat
	case a.weight < leastWeight:
		a.reason = MostlyWeek
	}
	if ready == series.Filled || a.reason != "" && a.reason != MostlyWeek && a.reason != WeatherObserved {
		a.quality = Estimated
	}
}

// correct corrects forecasts with a tracker, and records them if a recorded issue is due.
func (s *State) correct(t *track, values, references []float64) {
	last := s.work.last
	if !s.due(t) {
		t.Correct(last, values, references)
		return
	}
	t.issue(last, values, references)
}

// due reports whether an issue must be recorded.
func (s *State) due(t *track) bool {
	return (s.work.last+1)%t.Every() == 0 && s.work.last > t.newest
}

// expand writes the quantiles for the state's levels, given those of a model. A quantile
// between two of the model's quantiles is interpolated. A quantile outside their range is set
// to the nearest of them, and the tracker then moves it.
func (s *State) expand(to, from, levels []float64) {
	if levels == nil {
		for i := range to {
			to[i] = from[0]
		}
		return
	}
	at := 0
	for i, level := range s.levels {
		for at < len(levels) && levels[at] < level-1e-9 {
			at++
		}
		switch {
		case at == len(levels):
			to[i] = from[at-1]
		case at == 0 || levels[at] < level+1e-9:
			to[i] = from[at]
		default:
			share := (level - levels[at-1]) / (levels[at] - levels[at-1])
			to[i] = from[at-1] + float64(share*(from[at]-from[at-1]))
		}
	}
}

func resized(x []float64, n int) []float64 {
	if cap(x) < n {
		return make([]float64, n)
	}
	return x[:n]
}
