package schedule

import (
	"time"

	"loadstar/fed"
)

var _ fed.Scheduler = Periodic{}

// Periodic merges at the end of every period and then asks as many clients as are missing
// from the number that should be training (fekri2023, section 5.3). The update of a
// client that takes longer is merged at the end of a later period.
type Periodic struct {
	Running int
	Period  time.Duration
}

// Ask replaces missing clients at the start of a period.
func (p Periodic) Ask(s fed.Situation) int {
	if s.Now > s.Opened || s.Asked > 0 {
		return 0
	}
	return max(p.Running-s.Running, 0)
}

// Decide merges at the end of a period, if there are updates.
func (p Periodic) Decide(s fed.Situation) fed.Decision {
	switch {
	case s.Now < s.Opened+p.Period:
		return fed.Wait
	case s.Waiting > 0:
		return fed.MergeNow
	}
	return fed.Abandon
}

// Wake returns the end of the period.
func (p Periodic) Wake(s fed.Situation) (time.Duration, bool) { return s.Opened + p.Period, true }

// Carries returns true: a client keeps training across merges.
func (Periodic) Carries() bool { return true }
