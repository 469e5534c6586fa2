package schedule

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Synchronous{}

// Synchronous asks a cohort, waits for its updates and merges them, like FedAvg.
//
// A round closes when Cohort updates are counted, when all clients that were asked have
// returned or are lost, or at the deadline. Its updates are merged if there are at least
// Quorum of them. Otherwise the round is abandoned. Updates that arrive after the round
// closed are rejected.
type Synchronous struct {
	// Cohort is the number of updates wanted. Asked is the number of clients to ask,
	// which can be higher to allow for clients that do not return.
	Cohort, Asked int
	// Quorum is the minimum number of updates for a merge; 0 means 1.
	Quorum int
	// Deadline is the maximum duration of a round; 0 means no limit.
	Deadline time.Duration
}

// Ask returns the number of clients to ask once per round, and 0 after that.
func (p Synchronous) Ask(s fed.Situation) int {
	if s.Asked > 0 {
		return 0
	}
	return max(p.Asked, p.Cohort)
}

// Decide closes a round when no more updates are wanted or expected.
func (p Synchronous) Decide(s fed.Situation) fed.Decision {
	switch {
	case s.Waiting >= p.Cohort:
		return fed.MergeNow
	case s.Asked > 0 && s.Running == 0, p.Deadline > 0 && s.Now >= s.Opened+p.Deadline:
		if s.Waiting >= max(p.Quorum, 1) {
			return fed.MergeNow
		}
		return fed.Abandon
	}
	return fed.Wait
}

// Wake returns the time of the round's deadline, or false if there is none.
func (p Synchronous) Wake(s fed.Situation) (time.Duration, bool) {
	return s.Opened + p.Deadline, p.Deadline > 0
}

// Carries returns false: the update of a late client gets the verdict that its round is
// closed.
func (Synchronous) Carries() bool { return false }
