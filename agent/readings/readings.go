// Package readings ingests the readings of an agent's clients. They arrive as files
// in an inbox folder, over HTTP, or as samples that the package turns into steps.
package readings

import (
	"maps"
	"slices"
	"sync"
	"time"

	"loadstar/series/store"
)

type Kind uint8

const (
	Counter  Kind = iota // energy since some time, in kWh
	Power                // current power, in kW
	Interval             // mean power of the step that starts at the sample's time, in kW
)

// Sample is one value of a meter.
type Sample struct {
	Client string
	At     time.Time
	Value  float64
	Kind   Kind
}

// Client describes how to judge the readings of a client.
type Client struct {
	// Net means that negative power is feed-in. Otherwise a negative value is bad.
	Net bool
	// Limit is the highest mean power of a step in kW. If it is 0, the client's own
	// readings set the limit.
	Limit float64
}

// Config describes what readings are ingested.
type Config struct {
	Store    *store.Store
	Interval time.Duration
	// Zone is the time zone of readings whose times have no offset. If it is nil, such
	// readings are refused.
	Zone    *time.Location
	Clients map[string]Client
	// Flush is how long samples may wait for a transaction. 0 means 60 s.
	Flush time.Duration
	// Now returns the time. If it is nil, time.Now is used.
	Now func() time.Time
	// Clock returns an error if the system's clock cannot be trusted. In that case nothing
	// is ingested. Clock may be nil.
	Clock func() error
	// Log receives errors that will be retried. It may be nil.
	Log func(format string, args ...any)
}

// Stats counts readings by source and outcome. It is safe for concurrent use.
type Stats struct {
	mu sync.Mutex
	n  map[[2]string]int64
}

func (s *Stats) add(source, outcome string, n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[[2]string]int64{}
	}
	s.n[[2]string{source, outcome}] += int64(n)
}

// result counts the changes of a transaction.
func (s *Stats) result(source string, r store.Result) {
	s.add(source, "accepted", r.Accepted)
	s.add(source, "corrected", r.Corrected)
	s.add(source, "unchanged", r.Unchanged)
	s.add(source, "refused", len(r.Refused))
}

// Each calls do for each source and outcome, sorted.
func (s *Stats) Each(do func(source, outcome string, n int64)) {
	s.mu.Lock()
	n := maps.Clone(s.n)
	s.mu.Unlock()
	for _, k := range slices.SortedFunc(maps.Keys(n), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		do(k[0], k[1], n[k])
	}
}
