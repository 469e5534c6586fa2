package readings

import (
	"slices"
	"time"
)

// Receiving describes the messages of a client's meter since the agent started. A newly
// connected meter sends messages long before it has its first reading.
type Receiving struct {
	Messages int
	Since    time.Time // arrival of the first message
	// Complete is the end of the first step of which enough can be measured.
	Complete time.Time
}

// received contains an intake's data about a client's messages.
type received struct {
	messages     int
	since, first time.Time // arrival and own time of the first message
}

// storedWithin is the maximum time from the end of a step until it is stored, by default.
// It covers a message on its way and the next flush.
const storedWithin = 2 * time.Minute

// Receiving returns the description of a client's messages, or false if none was usable.
func (i *Intake) Receiving(client string) (Receiving, bool) {
	now := i.c.Now()
	i.mu.Lock()
	r, ok := i.received[client]
	i.mu.Unlock()
	if !ok {
		return Receiving{}, false
	}
	interval := i.c.Interval.Milliseconds()
	step := floor(r.first.UnixMilli(), interval)
	if measured := step + interval - r.first.UnixMilli(); float64(measured) < half*float64(interval) {
		step += interval
	}
	// If a step has ended without becoming a reading, it had gaps.
	if now.UnixMilli() > step+interval+storedWithin.Milliseconds() {
		step = floor(now.UnixMilli(), interval)
	}
	return Receiving{Messages: r.messages, Since: r.since, Complete: time.UnixMilli(step + interval)}, true
}

// note counts a message for each client with a usable sample. The caller must hold i.mu.
func (i *Intake) note(samples []Sample) {
	now := i.c.Now()
	for n, s := range samples {
		if _, ok := i.clients[s.Client]; !ok || !fits(s, now) || slices.ContainsFunc(samples[:n], func(x Sample) bool { return x.Client == s.Client }) {
			continue
		}
		r, ok := i.received[s.Client]
		if !ok {
			r.since, r.first = now, s.At
		}
		r.messages++
		i.received[s.Client] = r
	}
}
