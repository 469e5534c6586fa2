package schedule

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Buffered{}

// Buffered keeps a number of clients running, each from the version of its start,
// and merges whenever enough updates wait: FedBuff, and with a buffer of one
// FedAsync. Updates that arrive at the same time are merged together, also if they
// are more.
type Buffered struct {
	Running, Buffer int
}

// Ask replaces whoever has returned.
func (p Buffered) Ask(s fed.Situation) int { return max(p.Running-s.Running, 0) }

// Decide merges a full buffer.
func (p Buffered) Decide(s fed.Situation) fed.Decision {
	if s.Waiting >= p.Buffer {
		return fed.MergeNow
	}
	return fed.Wait
}

// Wake is never.
func (Buffered) Wake(fed.Situation) (time.Duration, bool) { return 0, false }

// Carries is true.
func (Buffered) Carries() bool { return true }
