package agent

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// pulse adds up the agent's work and logs one line a minute. Individual rounds are logged at
// debug level, because a fleet trains a round every few seconds.
type pulse struct {
	mu sync.Mutex
	did
	ended map[string]bool // runs whose end is already logged
}

// did is the agent's work since the last line.
type did struct {
	run                            string // run of the newest turns
	round                          int64
	rounds, trained, counted, late int
}

// maxEnded limits the memory for runs that have ended.
const maxEnded = 64

// training counts turns that begin to train.
func (p *pulse) training(run string, round int64, clients int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run, p.round = run, round
	p.rounds++
	p.trained += clients
}

// decided adds the numbers of updates that the server counted and that came too late.
func (p *pulse) decided(counted, late int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted += counted
	p.late += late
}

// over reports whether the end of a run has not been logged yet.
func (p *pulse) over(run string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended[run] {
		return false
	}
	if p.ended == nil || len(p.ended) >= maxEnded {
		p.ended = map[string]bool{}
	}
	p.ended[run] = true
	return true
}

// beat writes a line for each minute in which the agent trained, and a last line when the agent
// ends.
func (a *agent) beat(ctx context.Context) error {
	for ctx.Err() == nil {
		pause(ctx, a.pulseEvery, nil)
		a.pulse.mu.Lock()
		now := a.pulse.did
		a.pulse.did = did{}
		a.pulse.mu.Unlock()
		if now == (did{}) {
			continue
		}
		keys := []any{"tasks", now.rounds, "trained", now.trained, "counted", now.counted}
		if now.run != "" { // people count rounds from 1
			keys = append([]any{"run", now.run, "round", strconv.FormatInt(now.round+1, 10)}, keys...)
		}
		if now.late > 0 {
			keys = append(keys, "late", now.late)
		}
		a.Log.Info("trained", keys...)
	}
	return nil
}

// reached writes a line when the server responds again after an outage. It returns the time
// since which the server has been unreachable, or zero.
func (a *agent) reached(since time.Time, err error) time.Time {
	switch {
	case err != nil && since.IsZero():
		return time.Now()
	case err == nil && !since.IsZero():
		a.Log.Info("the server is back", "after", time.Since(since).Round(time.Second))
		return time.Time{}
	}
	return since
}
