// Package live forecasts for an agent's clients on schedule, scores the forecasts, and
// decides which model each client uses.
//
// A [Service] has four parts. The issuer makes forecasts from a snapshot of the readings. The chooser
// decides which model each client uses. The records hold past forecasts and their scores. The view
// shows all this to readers. Issuer and chooser share the roster of clients and models, and its lock.
package live

import (
	"errors"
	"time"

	"loadstar/forecast/issue"
)

// Errors that callers distinguish.
var (
	// ErrUnknown means that no client or group has the given name.
	ErrUnknown = errors.New("there is no such client")
	// ErrNoForecast means that no forecast has been issued for a client yet.
	ErrNoForecast = errors.New("there is no forecast yet")
)

// Site describes what all clients have in common.
type Site struct {
	Name   string // name of the agent
	Zone   *time.Location
	Step   time.Duration
	H      int // number of steps that are forecast
	Levels []float64
	// Generated means that the readings are synthetic.
	Generated bool
}

// ClientStatus is the state of a client or group.
type ClientStatus struct {
	Name string
	// Members are the members of a group. A client has none.
	Members []string
	// Newest is the end of the newest reading in Unix seconds, or 0. Days is the time since
	// the first reading in days.
	Newest int64
	Days   float64
	// Forecast is the newest issue without its rows, or nil. Source and Reason come from
	// its first row. Quality is the worst of its first day.
	Forecast *Issued
	Source   issue.Source
	Reason   issue.Reason
	Quality  issue.Quality
	// Scores cover the last 28 days, all leads together.
	Scores Score
	// Drift means that the client's model has become worse compared with last week's load.
	// Findings are codes of package series/quality. WantsRound means that only new training can
	// help.
	Drift      bool
	Findings   []string
	WantsRound bool
	Pinned     bool // the client's model is not changed
	// Next names the next forecast's model if the newest forecast has another model.
	Next string
}

// Issued is a forecast as it was issued.
type Issued struct {
	issue.Forecast
	Issued  int64 // time of the issue in Unix seconds
	Release ModelRef
	// Bare contains the model's own point forecasts before the correction, with NaN where
	// there is none. It is nil after a restart, or if no model was used.
	Bare []float64
	// Sequence counts the client's issues. It increases whenever the client's forecasts change.
	Sequence uint64
}

// ModelRef names the model of a forecast.
type ModelRef struct {
	Release string // a name such as day@7, or the name of a folder; empty if there is none
	Run     string
	Version int
	// Head is the Unix time in seconds at which the client's personal layers were fitted or
	// trained, or 0.
	Head int64
	// Stale means that the model is older than 90 days.
	Stale bool
}

// Said is the forecast for a step, with the actual load.
type Said struct {
	Time, Cutoff int64 // Unix seconds
	Values       []float64
	Mean         float64
	Source       issue.Source
	Actual       float64 // NaN if it is not known
}

// Score sums up the errors of issued forecasts.
type Score struct {
	Days  int // length of the period
	First int // first and last lead of the block in steps; both 0 for all leads together
	Last  int
	Steps int // number of forecasts with a known load
	// MAE is in kW. RelativeMAE is relative to the error of last week's load in the same steps.
	// Both are NaN if they are unknown.
	MAE, RelativeMAE float64
	// Pinball is the mean pinball loss for each level.
	Pinball []float64
	// Coverage is the share of loads between the lowest and the highest level.
	Coverage float64
	// Fallback is the share of rows that are not from a model.
	Fallback float64
	// Energy is the score of the energy forecast for the 24 hours after the first issue of each
	// local day. It covers no days if the score is for a block of leads, or if no day is known.
	Energy EnergyScore
}

// EnergyScore sums up the errors of daily energies.
type EnergyScore struct {
	Days int
	// MAE is in kWh. RelativeMAE is relative to the error of last week's energy, and Bias is
	// relative to the energy.
	MAE, RelativeMAE, Bias float64
}

// QualityReport describes the readings of a client.
type QualityReport struct {
	From, To int64   // span of the readings
	Missing  float64 // share of missing steps in the last 28 days
	Findings []Finding
}

// Finding is a problem of a client's readings in the last 7 days.
type Finding struct {
	Code, Message, Advice string
}

// ModelStatus describes one of the agent's models.
type ModelStatus struct {
	ModelRef
	Received int64 // Unix seconds
	// Serving lists the clients that use the model, Trial those that still compare it with their
	// previous one, and Refused those that have refused it.
	Serving, Trial, Refused []string
}

// Counters are totals since the agent started.
type Counters struct {
	Issues      map[string]uint64       // by client
	Rows        map[issue.Source]uint64 // issued rows by source
	DriftAlarms map[string]uint64       // by client
}
