package finding

import (
	"fmt"
	"time"
)

// Differences between two clocks that are worth a finding.
const skewWarn, skewFail = 5 * time.Second, 2 * time.Minute

// Clock adds a finding about the difference between this machine's clock and another one.
// ahead is negative if this machine's clock is behind. other names the other clock.
func (l *List) Clock(check string, ahead time.Duration, other string) {
	text := fmt.Sprintf("%s ahead of %s", ahead.Round(time.Second), other)
	if ahead < 0 {
		text = fmt.Sprintf("%s behind %s", (-ahead).Round(time.Second), other)
	}
	const set = "set the clocks of both machines, for example with timedatectl set-ntp true"
	switch ahead = ahead.Abs(); {
	case ahead > skewFail:
		l.Fail(check, set, "%s", text)
	case ahead > skewWarn:
		l.Warn(check, set, "%s", text)
	default:
		l.OK(check, "%s", text)
	}
}

// Validity adds a finding about a certificate's remaining validity. The finding is a warning if
// the remaining validity is shorter than warn.
func (l *List) Validity(check string, from, until time.Time, warn time.Duration, do string) {
	const minutes = "2006-01-02 15:04"
	left, end := time.Until(until), until.Local().Format(minutes)
	switch {
	case time.Now().Before(from):
		l.Fail(check, "set the clock", "valid from %s, which is in the future", from.Local().Format(minutes))
	case left <= 0:
		l.Fail(check, do, "expired at %s", end)
	case left < warn:
		l.Warn(check, do, "%s left, until %s", Days(left), end)
	default:
		l.OK(check, "%s left, until %s", Days(left), end)
	}
}

// Days returns a duration as a number of days.
func Days(d time.Duration) string {
	if n := int(d / (24 * time.Hour)); n != 1 {
		return fmt.Sprintf("%d days", n)
	}
	return "1 day"
}
