// Package store keeps the readings of an agent's clients on disk, and the weather forecasts
// that they need. Readings are on a grid: times are Unix seconds of the start of a step, and
// step n starts at n times the interval.
//
// The store is one bbolt file. A day of a client is one value, and [Store.Put] is one
// transaction: when it returns, its readings survive a crash. A later reading of a step
// replaces an earlier one, and the store counts how often that happened.
package store

import (
	"time"

	"loadstar/series"
)

// Quality describes a reading.
type Quality uint8

// The qualities, from best to worst.
const (
	OK        Quality = iota // measured
	Estimated                // partly measured
	Missing                  // no value
	Bad                      // a value that cannot be right; it is stored but not used
)

// Reading is the mean power of a client in one step.
type Reading struct {
	Client  string
	Time    int64 // start of the step, Unix seconds
	KW      float32
	Quality Quality
	// Revision orders the readings of a step: the highest one counts, in whatever order they
	// arrive. It is counted from 1. If it is 0, the reading that arrives last counts.
	Revision int
}

// Config describes the grid and the limits of a store.
type Config struct {
	// Interval is the length of a step. It is fixed when the file is created.
	Interval time.Duration
	// Clock is the local time of the clients, for weather of the same clock time.
	Clock *time.Location
	// Keep is how long readings are kept, 800 days if it is 0.
	Keep time.Duration
}

// Reason says why a reading was refused.
type Reason string

// The reasons.
const (
	BadName        Reason = "name"             // the client's name is empty, too long or has control characters
	TooManyClients Reason = "too-many-clients" // the store has as many clients as it can hold
	OffGrid        Reason = "off-grid"         // the time is not the start of a step
	TooLate        Reason = "too-late"         // the step is older than 45 days
	Future         Reason = "future"           // the step ends more than 5 minutes ahead
	Before2015     Reason = "before-2015"      // the clock of the sender was not set
	BadValue       Reason = "value"            // the value is not a finite number, or too large
	BadRevision    Reason = "revision"         // the revision is negative or too large
)

// Refusal is a reading that was not stored.
type Refusal struct {
	Index  int // in the readings passed to Put
	Reason Reason
}

// Result says what Put did with its readings.
type Result struct {
	Accepted  int // stored in a step that had no reading
	Corrected int // stored in place of another reading
	Unchanged int // stored already, or older than what is stored
	Refused   []Refusal
}

// Mark says where a weather value comes from.
type Mark uint8

// The marks, from best to worst.
const (
	Known       Mark = iota // observed, or from a weather forecast of the last 48 hours
	Persisted               // of the same clock time one to three days before
	Climatology             // mean of month and hour in the store
	Unknown                 // there is no value
)

// WeatherRow is the weather at one time, as one weather forecast or observation says it.
type WeatherRow struct {
	Time   int64 // what the values are for, Unix seconds
	Issued int64 // when they were known; at or after Time it is an observation
	Values []float32
}

var _ series.Weather
