package issue

import (
	"errors"
	"time"

	"loadstar/series"
)

// Forecaster is a model with the weights and the scaling of one client, and the readings of
// the client.
type Forecaster interface {
	// Name names the model, such as day@7.
	Name() string
	// Step is the interval of the model's forecasts.
	Step() time.Duration
	// Span returns the first step after the cutoff that is forecast, counted from 1, and the
	// number of steps.
	Span() (first, n int)
	// Levels returns the quantiles of each step in ascending order, or nil if the model
	// forecasts only points. Point is the index of the point forecast.
	Levels() (levels []float64, point int)
	// Ready reports whether the model can forecast at a cutoff. The reason says why not, or
	// what it has to do without.
	Ready(cutoff int64) (series.Readiness, Reason)
	// Forecast writes a row for each step of the span, with one value per level in kW, in
	// ascending order. It must not use a load at or after the cutoff.
	Forecast(out []float64, cutoff int64) error
}

// Models are the models to ask for a client's forecast.
type Models struct {
	// Own is the client's model, and Generic a model without personal layers. Both may be
	// nil.
	Own, Generic Forecaster
	// Reason says why Own is nil: NoRelease, NoHead or StepDiffers.
	Reason Reason
}

// Fallback is what takes the place of a model.
type Fallback string

// The fallbacks.
const (
	// LastWeek is the load at the same clock time 7 or 14 days before.
	LastWeek Fallback = "week"
	// ExtremeDay is the day with the highest peak of the last 28. It is for users who must
	// not underestimate peaks.
	ExtremeDay Fallback = "extreme-day"
)

// Config describes the forecasts of a client.
type Config struct {
	// Step is the interval of the readings, and Clock the local time of the meter.
	Step  time.Duration
	Clock *time.Location
	// H is the number of steps to forecast.
	H int
	// Levels are the quantiles to forecast, in ascending order; nil means 0.1, 0.5 and 0.9.
	Levels []float64
	// Fallback is LastWeek if it is empty.
	Fallback Fallback
}

// State is what a client's forecasts have learned from the errors of earlier ones. It is
// not safe for concurrent use.
//
// Only recorded issues change what a state learns: those at cutoffs that are multiples of
// [State.Every] in UTC. So a client that makes a forecast at every step has the same state
// as one that makes only the recorded ones.
type State struct {
	c Config
}

// NewState returns the state of a client that has made no forecast.
func NewState(c Config) (*State, error) {
	return &State{c: c}, errors.New("not implemented yet")
}

// Every returns the number of steps between recorded issues.
func (s *State) Every() int { return 1 }

// Next returns the start of the first step that the state has not seen, in Unix seconds, or
// 0 if it has seen none.
func (s *State) Next() int64 { return 0 }

// Advance shows the state the readings before the cutoff that it has not seen.
func (s *State) Advance(m series.Meter, cutoff int64) {}

// Issue makes the forecast at a cutoff, which must be a multiple of the step. It advances
// the state to the cutoff, and records the forecast if a recorded issue is due. Readings at
// or after the cutoff have no effect.
//
// The meter is the one for which the models were made. It should reach back at least 28
// days; older readings have no effect.
func (s *State) Issue(m series.Meter, models Models, cutoff int64) Forecast { return Forecast{} }

// AppendBinary appends the encoded state to b.
func (s *State) AppendBinary(b []byte) ([]byte, error) { return b, nil }

// UnmarshalBinary replaces the state by an encoded one, which must belong to the same
// configuration. If it returns an error, the state is unchanged.
func (s *State) UnmarshalBinary(b []byte) error { return nil }
