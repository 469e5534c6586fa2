package schedule

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Synchronous{}

// Synchronous asks a cohort, waits for it and merges: the rounds of FedAvg.
//
// A round closes when Cohort updates are counted, when everybody who was asked has
// returned or is lost, or at the deadline. It is merged if the quorum is counted,
// and abandoned otherwise. Whoever returns later is refused.
type Synchronous struct {
	// Cohort is how many updates are wanted, and Asked how many clients are asked
	// for them: more, against those who do not return.
	Cohort, Asked int
	// Quorum is how many updates a merge takes at least; 0 means 1.
	Quorum int
	// Deadline is when a round ends at the latest; 0 is never.
	Deadline time.Duration
}

// Ask asks once a round.
func (p Synchronous) Ask(s fed.Situation) int {
	if s.Asked > 0 {
		return 0
	}
	return max(p.Asked, p.Cohort)
}

// Decide closes a round as soon as nothing more is wanted or to be had.
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

// Wake is the deadline.
func (p Synchronous) Wake(s fed.Situation) (time.Duration, bool) {
	return s.Opened + p.Deadline, p.Deadline > 0
}

// Carries is false: a straggler hears that its round is closed.
func (Synchronous) Carries() bool { return false }
