package gateway

import (
	"context"
	"sync"
	"time"
)

// Limits on what a gateway remembers about check-ins.
const (
	// seenEvery is the interval at which the time of an agent's last check-in is stored.
	seenEvery = time.Minute
	// batches is the number of times per interval that check-ins are stored. An agent that
	// returns can take part in runs only after its check-in has been stored.
	batches = 12
	maxSeen = 100_000
)

// seen collects the agents that have checked in until the ledger stores them. Each agent is
// stored once per interval.
type seen struct {
	every time.Duration

	mu      sync.Mutex
	pending []string
	noted   map[string]time.Time // time at which an agent was added to pending
	next    time.Time            // time at which pending is stored
}

func newSeen(every time.Duration) *seen {
	if every <= 0 {
		every = seenEvery
	}
	return &seen{every: every, noted: map[string]time.Time{}}
}

// note adds an agent unless it was added less than an interval ago.
func (s *seen) note(agent string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.noted[agent]; ok && now.Sub(last) < s.every || len(s.pending) >= maxSeen {
		return
	}
	if len(s.noted) >= maxSeen {
		clear(s.noted) // some agents are stored once more than necessary
	}
	s.noted[agent] = now
	s.pending = append(s.pending, agent)
}

// take returns the agents to store, or nil if it is not time yet.
func (s *seen) take(now time.Time) (agents []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.next) {
		return nil
	}
	s.next = now.Add(s.every / batches)
	agents, s.pending = s.pending, nil
	return agents
}

// storeSeen stores that agents have checked in.
func (g *Gateway) storeSeen(ctx context.Context, agents []string) {
	if len(agents) == 0 {
		return
	}
	if err := g.Ledger.Directory.Seen(ctx, agents, g.Ledger.Now()); err != nil && ctx.Err() == nil {
		// The agents are recorded again after the next interval, which is shorter than the time
		// after which they would be excluded from runs.
		g.Log.Warn("cannot store the times of agents' calls", "error", err)
	}
}
