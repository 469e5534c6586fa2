// Package readings takes in the readings of an agent's clients: from files in an inbox
// folder, over HTTP, and as samples that it turns into steps.
package readings

import (
	"context"
	"errors"
	"time"

	"loadstar/series/store"
)

// Kind is what the values of samples are.
type Kind uint8

// The kinds.
const (
	Counter  Kind = iota // energy since some time, kWh
	Power                // power now, kW
	Interval             // mean power of the step that starts at the sample's time, kW
)

// Sample is one value of a meter.
type Sample struct {
	Client string
	At     time.Time
	Value  float64
	Kind   Kind
}

// Client says how to judge the readings of a client.
type Client struct {
	// Net means that negative power is feed-in. Otherwise a negative value is bad.
	Net bool
	// Limit is the highest mean power of a step in kW. If it is 0, it follows from the
	// client's own readings.
	Limit float64
}

// Config describes what readings are taken in.
type Config struct {
	Store    *store.Store
	Interval time.Duration
	Clients  map[string]Client
	// Flush is how long samples may wait for a transaction, 60 s if it is 0.
	Flush time.Duration
	// Now is the time, time.Now if it is nil.
	Now func() time.Time
	// Clock returns an error while the system's clock cannot be trusted. Nothing is taken in
	// then. It may be nil.
	Clock func() error
	// Log is told about errors that will be retried. It may be nil.
	Log func(format string, args ...any)
}

// ErrClosed means that an intake has ended.
var ErrClosed = errors.New("the agent is stopping")

// Intake turns samples into readings and stores them, many in one transaction.
type Intake struct{}

// NewIntake returns an intake that continues where the last one with the same store ended.
func NewIntake(c Config) (*Intake, error) { return nil, errors.ErrUnsupported }

// Add takes samples of one message, in order of time for each client. It calls done once:
// with nil when what the samples changed is on disk, or with an error if the message must be
// sent again. A sample that cannot be used is counted and does not need to be sent again.
// Done may be called before Add returns, and must not call Add. Add blocks while too many
// samples wait.
func (i *Intake) Add(samples []Sample, done func(error)) { done(errors.ErrUnsupported) }

// Run stores samples until the context ends, then stores the rest and returns.
func (i *Intake) Run(ctx context.Context) error { return errors.ErrUnsupported }

// SetClients replaces the clients, after the configuration was read again.
func (i *Intake) SetClients(clients map[string]Client) {}
