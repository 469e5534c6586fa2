package recipe

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Periodic{}

// Periodic merges at the end of every period and then asks new clients until Running
// clients are training (fekri2023, section 5.3). The update of a client that takes longer
// than a period is merged at the end of a later period.
type Periodic struct {
	Running int
	Period  time.Duration
}

// Ask returns, at the start of a period, the number of clients to ask so that Running
// clients are training.
func (p Periodic) Ask(s fed.Situation) int {
	if s.Now > s.Opened || s.Asked > 0 {
		return 0
	}
	return max(p.Running-s.Running, 0)
}

// Decide waits until the end of the period. It then merges if there are updates, and
// otherwise abandons the round.
func (p Periodic) Decide(s fed.Situation) fed.Decision {
	switch {
	case s.Now < s.Opened+p.Period:
		return fed.Wait
	case s.Waiting > 0:
		return fed.MergeNow
	}
	return fed.Abandon
}

// Wake returns the time at which the current period ends.
func (p Periodic) Wake(s fed.Situation) (time.Duration, bool) { return s.Opened + p.Period, true }

// Carries returns true, because a client continues to train while other clients' updates are
// merged.
func (Periodic) Carries() bool { return true }
