package schedule

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Buffered{}

// Buffered keeps a fixed number of clients training, each from the version at its start,
// and merges when the buffer is full: FedBuff, and FedAsync with a buffer of one. Updates
// that arrive at the same time are merged together, even if there are more than the
// buffer's size.
type Buffered struct {
	Running, Buffer int
}

// Ask replaces clients that have returned.
func (p Buffered) Ask(s fed.Situation) int { return max(p.Running-s.Running, 0) }

// Decide merges when the buffer is full.
func (p Buffered) Decide(s fed.Situation) fed.Decision {
	if s.Waiting >= p.Buffer {
		return fed.MergeNow
	}
	return fed.Wait
}

// Wake reports that no timer is needed.
func (Buffered) Wake(fed.Situation) (time.Duration, bool) { return 0, false }

// Carries returns true: a client keeps training across merges.
func (Buffered) Carries() bool { return true }
