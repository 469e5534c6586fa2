package recipe

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Synchronous{}

// Synchronous asks a cohort, waits for its updates and merges them, like FedAvg.
//
// A round closes when Cohort updates are counted, when all clients that were asked have
// returned or are lost, or at the deadline. If there are at least Quorum updates, they are
// merged. Otherwise the round is abandoned. Updates that arrive after the round has closed are
// rejected.
//
// If too few clients are available, the round stays open until the deadline, in case more
// become available. This prevents a fleet that is unavailable for an hour from using up all
// rounds of its run.
type Synchronous struct {
	// Cohort is the intended number of updates. Asked is the number of clients to ask, which
	// can be higher than Cohort to allow for clients that do not return.
	Cohort, Asked int
	// Quorum is the minimum number of updates for a merge; 0 means 1.
	Quorum int
	// Deadline is the maximum duration of a round; 0 means no limit.
	Deadline time.Duration
}

// Ask returns the number of clients that are still to be asked in the round.
func (p Synchronous) Ask(s fed.Situation) int { return p.wanted() - s.Asked }

func (p Synchronous) wanted() int { return max(p.Asked, p.Cohort) }

// Decide closes a round when there are enough updates, or when no more are expected.
func (p Synchronous) Decide(s fed.Situation) fed.Decision {
	over := p.Deadline > 0 && s.Now >= s.Opened+p.Deadline
	switch {
	case s.Asked == 0:
		return fed.Wait
	case s.Waiting >= p.Cohort:
		return fed.MergeNow
	case s.Running > 0 && !over:
		return fed.Wait
	case s.Waiting >= max(p.Quorum, 1):
		return fed.MergeNow
	case s.Asked < p.wanted() && !over:
		return fed.Wait
	}
	return fed.Abandon
}

// Wake returns the time of the round's deadline, or false if there is none.
func (p Synchronous) Wake(s fed.Situation) (time.Duration, bool) {
	return s.Opened + p.Deadline, p.Deadline > 0
}

// Carries returns false, so a late update gets the verdict that its round is closed.
func (Synchronous) Carries() bool { return false }
