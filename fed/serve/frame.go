package serve

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/forecast/issue"
	"loadstar/series"
	"loadstar/series/feature"
)

// Frame makes a model's forecasts from tails. It is safe for concurrent use.
type Frame struct {
	model   *Model
	tails   *Tails
	problem *recipe.Problem
	weather issue.Reason
	hours   *hourly // nil unless the model is a young one
}

// Frame returns a frame for tails. The error describes what the tails lack.
func (m *Model) Frame(t *Tails) (*Frame, error) {
	d := t.frame
	if m.young != nil {
		return m.youngFrame(t)
	}
	if m.Step != 0 && m.Step != d.Interval {
		return nil, fmt.Errorf("the model is for readings %s apart, but those of %s are %s apart", m.Step, d.Name, d.Interval)
	}
	f := &Frame{model: m, tails: t}
	q := *m.Problem // Open changes only what depends on the dataset
	if err := q.Open(d); err != nil {
		return nil, err
	}
	f.problem = &q
	// Each worker uses the features of one meter at a time, and only a few times, so a small
	// cache suffices.
	_, meter := q.FeatureBytes(d)
	q.LimitCache(2 * meter * int64(runtime.GOMAXPROCS(0)))
	l, days := q.Framer.Layout(), 0
	for _, in := range q.Inputs {
		days = max(days, in.Days)
	}
	if most := (tailDays - 1) * d.StepsPerDay(); l.Lookback+days*d.StepsPerDay() > most {
		return nil, fmt.Errorf("the model reads loads of the last %d steps; forecasts can use %d, which is %d days", l.Lookback+days*d.StepsPerDay(), most, tailDays-1)
	}
	f.weather = m.worstWeather(t)
	return f, nil
}

// worstWeather returns the worst of the reasons that concern the weather that the model reads
// after the cutoff.
func (m *Model) worstWeather(t *Tails) (worst issue.Reason) {
	for _, name := range m.weatherAhead() {
		if reason := t.Weather[name]; rank(reason) > rank(worst) {
			worst = reason
		}
	}
	return worst
}

// span returns the first step after a cutoff that the model forecasts, counted from 1, and the
// number of steps, for readings with the given interval.
func (m *Model) span(step time.Duration) (first, n int) {
	p := &m.Plan.Model
	if m.young != nil {
		return 1, p.Targets.Steps() * int(m.Step/step)
	}
	return p.Horizon.Steps(), p.Targets.Steps()
}

// weatherAhead returns the weather columns that the model reads after the cutoff.
func (m *Model) weatherAhead() (names []string) {
	if recipe.Rows(m.Plan) {
		if m.Plan.Model.Horizon.Steps() == 1 && m.Plan.Model.Targets.Steps() == 1 {
			return nil
		}
		for _, name := range []string{"temperature", "wind"} {
			if slices.Contains(m.Problem.Groups, name) {
				names = append(names, name)
			}
		}
		return names
	}
	for _, in := range m.Problem.Inputs {
		if in.AtTarget && in.Days == 0 {
			names = append(names, in.Name)
		}
	}
	return names
}

// rank orders reasons about weather from best to worst.
func rank(r issue.Reason) int {
	return slices.Index([]issue.Reason{"", issue.WeatherObserved, issue.WeatherPersisted, issue.WeatherClimatology, issue.WeatherMissing}, r)
}

// Reach returns the number of steps from a cutoff to the end of the last step that the model
// forecasts. step is the interval of the readings.
func (m *Model) Reach(step time.Duration) int {
	first, n := m.span(step)
	return first + n - 1
}

// Forecaster returns the forecaster of a meter that [Tails.Meter] returned. One goroutine
// may use it at a time.
func (f *Frame) Forecaster(m series.Meter, c Client) issue.Forecaster {
	if f.hours != nil {
		return &youngForecaster{frame: f, meter: m, client: c}
	}
	x := &forecaster{frame: f, meter: m, client: c}
	x.examples = f.problem.Newest(m, c.Scaling, x.last(f.tails.Cutoff))
	return x
}

type forecaster struct {
	frame    *Frame
	meter    series.Meter
	client   Client
	examples series.Examples
	// filled contains the examples for a cutoff with missing loads replaced, or is nil.
	filled   series.Examples
	filledAt int64
}

func (f *forecaster) Name() string { return f.frame.model.Name }

func (f *forecaster) Step() time.Duration { return f.frame.tails.data.Interval }

func (f *forecaster) Span() (first, n int) {
	return f.frame.model.span(f.Step())
}

func (f *forecaster) Levels() (levels []float64, point int) {
	return f.frame.model.levels, f.frame.model.point
}

// last returns the newest step before a cutoff.
func (f *forecaster) last(cutoff int64) int {
	return int((cutoff-f.meter.Start)/f.frame.tails.data.Seconds()) - 1
}

func (f *forecaster) Ready(cutoff int64) (series.Readiness, issue.Reason) {
	if f.frame.weather == issue.WeatherMissing {
		return series.Unready, issue.WeatherMissing
	}
	last := f.last(cutoff)
	if feature.Tail(cutoff, f.frame.tails.data.Seconds()) != f.meter.Start || last >= len(f.meter.Load) {
		return series.Unready, issue.ModelFailed // the tails are for another cutoff
	}
	ready := f.examples.Ready(last)
	if x := f.fill(cutoff); ready == series.Unready && x != nil && x.Ready(last) == series.Complete {
		ready = series.Filled
	}
	switch ready {
	case series.Unready:
		need := f.frame.problem.Framer.Layout().Lookback
		if last+1 < need || !slices.ContainsFunc(f.meter.Load[:last+1-need+1], func(v float32) bool { return !series.Missing(v) }) {
			return ready, issue.ShortHistory
		}
		return ready, issue.Gap
	case series.Filled:
		if f.frame.weather != "" && f.frame.weather != issue.WeatherObserved {
			return ready, f.frame.weather
		}
		return ready, issue.InputFilled
	default:
		return ready, f.frame.weather
	}
}

func (f *forecaster) Forecast(out []float64, cutoff int64) error {
	p := f.frame.model.predictors.Get().(*forecast.Predictor)
	defer f.frame.model.predictors.Put(p)
	last, x := f.last(cutoff), f.examples
	if x.Ready(last) == series.Unready {
		if x = f.fill(cutoff); x == nil {
			return fmt.Errorf("meter %s: the model cannot forecast at %d", f.meter.ID, cutoff)
		}
	}
	return p.Predict(out, f.client.Weights, x, last)
}

// longestFill is the maximum number of consecutive missing steps that are replaced in a window.
// Rows of features replace missing loads themselves.
const longestFill = 2

// fill returns the examples of a window model at a cutoff. It interpolates missing loads
// between known ones, and repeats the last known load at the end. It returns nil if no load
// needs to be replaced.
func (f *forecaster) fill(cutoff int64) series.Examples {
	if recipe.Rows(f.frame.model.Plan) {
		return nil
	}
	if f.filledAt == cutoff {
		return f.filled
	}
	f.filledAt, f.filled = cutoff, nil
	m := f.meter
	m.Load = slices.Clone(m.Load[:f.last(cutoff)+1]) // loads after the cutoff have no effect
	before, changed := -1, false
	for i := range len(m.Load) + 1 {
		if i < len(m.Load) && series.Missing(m.Load[i]) {
			continue
		}
		if n := i - before - 1; before >= 0 && n > 0 && n <= longestFill {
			changed = true
			step := float32(0)
			if i < len(m.Load) {
				step = (m.Load[i] - m.Load[before]) / float32(n+1)
			}
			for k := 1; k <= n; k++ {
				m.Load[before+k] = m.Load[before] + float32(float32(k)*step)
			}
		}
		before = i
	}
	if changed {
		f.filled = f.frame.problem.Newest(m, f.client.Scaling, f.last(cutoff))
	}
	return f.filled
}
