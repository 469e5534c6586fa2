package forecast

import (
	"fmt"
	"math"
	"slices"

	"loadstar/series"
)

// Ridge is linear regression with a small penalty on the coefficients. There is a separate
// regression for each client and target:
//
//	minimise  Σ (y - b₀ - x·b)² + λ‖b‖²
//
// over the examples of the training split. Every feature x is scaled to mean 0 and variance
// 1, so that λ has the same effect on all features. b₀ is not penalised.
//
// The features are the last 12 loads, indicators of the target's hour and day of the week, and
// the weather. If Rich is set, they are the last 24 loads, the loads at the target's clock time
// 2, 3 and 7 days before, indicators of the target's hour, day of the week and hour of the
// weekend, and additional features of the weather.
//
// If only the next step is forecast, the weather is taken at the last known step. Otherwise, it
// is the weather at the target, as if it had been forecast without error.
type Ridge struct {
	Rich bool
	// Lambda is λ. If it is 0, each client and target uses the value in lambdas with the
	// smallest absolute error on the validation split.
	Lambda float64

	c      Client
	lags   int
	own    []feature
	cells  []int // the hour of the week of each step, from 0 on Monday
	models []linearModel
	x      []float64
}

// linearModel contains the coefficients b₀ and b for unscaled features.
type linearModel struct {
	intercept float64
	slopes    []float64
}

// at returns the model's value for features x.
func (m *linearModel) at(x []float64) float64 {
	v := m.intercept
	for i, b := range m.slopes {
		v += float64(b * x[i])
	}
	return v
}

// feature computes a feature, given the last known step and the target's step.
type feature func(last, step int) float64

// richLags lists the lags of the additional loads, in days before the target.
var richLags = []int{2, 3, 7}

// lambdas are the values of λ that are tried on the validation split.
var lambdas = []float64{1, 10, 100, 1000}

const (
	hours = 24
	days  = 7
	// saturday is the number of the first day of the weekend, counted from Monday, which is 0.
	saturday = 5
)

// Fit solves the normal equations of every target.
func (r *Ridge) Fit(c Client) error {
	l := c.Frame.Layout()
	r.c, r.lags, r.own = c, 12, nil
	if r.Rich {
		r.lags = 24
		for _, n := range richLags {
			r.own = append(r.own, r.sameTime(n))
		}
	}
	r.addWeather(l.Horizon+l.Targets == 2)
	r.cells = make([]int, len(c.Meter.Load)+l.Horizon+l.Targets)
	for step := range r.cells {
		r.cells[step] = int(c.Frame.Value(c.Meter, "day_of_week", step))*hours + int(c.Frame.Value(c.Meter, "hour", step))
	}
	r.x = make([]float64, r.features())
	tried := lambdas
	if r.Lambda > 0 {
		tried = []float64{r.Lambda}
	}
	n := newNormal(r, r.examples(series.Train))
	check := r.examples(series.Validation)
	r.models = make([]linearModel, l.Targets)
	for target := range r.models {
		ahead := l.Horizon + target
		n.sum(ahead)
		var models []linearModel
		for _, lambda := range tried {
			m, err := n.solve(lambda)
			if err != nil {
				return fmt.Errorf("ridge of meter %s: %w", c.Meter.ID, err)
			}
			models = append(models, m)
		}
		r.models[target] = models[r.best(models, check, ahead)]
	}
	return nil
}

// best returns the index of the model with the smallest sum of absolute errors over the
// examples with the given last known steps.
func (r *Ridge) best(models []linearModel, lasts []int, ahead int) int {
	if len(models) == 1 {
		return 0
	}
	errors := make([]float64, len(models))
	for _, last := range lasts {
		r.fill(last, ahead) // fill succeeds, because the example is complete
		for i := range models {
			errors[i] += math.Abs(models[i].at(r.x) - r.c.load(last+ahead))
		}
	}
	return slices.Index(errors, slices.Min(errors))
}

// addWeather adds features of the weather that the dataset has. They describe the last known
// step if now is set. Otherwise, they describe the target, with the temperature of the last
// known step for comparison.
func (r *Ridge) addWeather(now bool) {
	add := func(name string, f func(x []float64, last, step int) float64) {
		if r.c.Frame.Known(name) {
			x := r.c.filled(name)
			r.own = append(r.own, func(last, step int) float64 { return f(x, last, step) })
		}
	}
	at := func(last, step int) int {
		if now {
			return last
		}
		return step
	}
	value := func(x []float64, last, step int) float64 { return x[at(last, step)] }
	hour := max(r.c.perDay()/24, 1)
	add("temperature", value)
	add("wind", value)
	if r.Rich {
		add("temperature", func(x []float64, last, step int) float64 { return x[at(last, step)] * x[at(last, step)] })
	}
	if now {
		add("temperature", func(x []float64, last, _ int) float64 { return x[last] - x[max(last-hour, 0)] })
	} else {
		add("temperature", func(x []float64, last, _ int) float64 { return x[last] })
	}
}

// sameTime returns a feature: the load at the target's clock time n days earlier, or the
// smallest multiple of n days earlier for which the load is known. It looks up the positions
// only once, because each step is the target of many examples.
func (r *Ridge) sameTime(n int) feature {
	c := r.c
	at := make([]int, len(c.Meter.Load))
	value := make([]float64, len(at))
	for step := range at {
		at[step] = c.Frame.Lag(c.Meter, step, n)
		value[step] = c.sameTime(step, at[step], n)
	}
	return func(last, step int) float64 {
		if step < len(at) && at[step] <= last {
			return value[step]
		}
		return c.sameTime(step, last, n)
	}
}

// examples returns the last known steps of the examples in a split for which all features
// of all targets are known.
func (r *Ridge) examples(p series.Part) []int {
	l := r.c.Frame.Layout()
	var lasts []int
	_ = r.c.Frame.Windows(r.c.Meter, nil).Each(p, func(last int) error {
		for target := range l.Targets {
			if !r.fill(last, l.Horizon+target) {
				return nil
			}
		}
		lasts = append(lasts, last)
		return nil
	}) // the function never returns an error
	return lasts
}

// Forecast computes the regression's forecast of each target.
func (r *Ridge) Forecast(out []float64, last int) bool {
	for target := range out {
		if !r.fill(last, r.c.Frame.Layout().Horizon+target) {
			return false
		}
		out[target] = r.models[target].at(r.x)
	}
	return true
}

// features returns the number of features.
func (r *Ridge) features() int {
	n := r.lags + len(r.own) + hours + days
	if r.Rich {
		n += hours
	}
	return n
}

// fill computes the features for the target that is ahead steps after last: the lags, oldest
// first; the features that are specific to the target; and the indicators. It returns false if
// a feature is missing.
func (r *Ridge) fill(last, ahead int) bool {
	step := last + ahead
	if step < 0 || step >= len(r.cells) {
		return false
	}
	for i := range r.lags {
		r.x[i] = r.c.load(last - r.lags + 1 + i)
	}
	at := r.lags
	for _, f := range r.own {
		r.x[at] = f(last, step)
		at++
	}
	if slices.ContainsFunc(r.x[:at], math.IsNaN) {
		return false
	}
	clear(r.x[at:])
	day, hour := r.cells[step]/hours, r.cells[step]%hours
	r.x[at+hour] = 1
	r.x[at+hours+day] = 1
	if r.Rich && day >= saturday {
		r.x[at+hours+days+hour] = 1
	}
	return true
}
