package recipe

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Buffered{}

// Buffered keeps a fixed number of clients training, and merges when the buffer is full. A
// client trains from the version that was current when it was asked. This is the schedule of
// FedBuff and, with a buffer of one, of FedAsync. Updates that arrive at the same time are
// merged together, even if there are more of them than the buffer holds.
type Buffered struct {
	Running, Buffer int
}

// Ask returns the number of clients that must be replaced because they have returned or have
// been lost.
func (p Buffered) Ask(s fed.Situation) int { return max(p.Running-s.Running, 0) }

// Decide returns MergeNow when the buffer is full.
func (p Buffered) Decide(s fed.Situation) fed.Decision {
	if s.Waiting >= p.Buffer {
		return fed.MergeNow
	}
	return fed.Wait
}

// Wake reports that no timer is needed.
func (Buffered) Wake(fed.Situation) (time.Duration, bool) { return 0, false }

// Carries returns true, because a client continues to train while other clients' updates are
// merged.
func (Buffered) Carries() bool { return true }
