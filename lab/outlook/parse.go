package outlook

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The formats of a time without an offset.
var naive = []string{"2006-01-02", "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02T15:04:05"}

// ParseTime parses a time such as 2026-11-15T14:00:00Z or 2026-11-15 14:00. A time without an
// offset is on the given clock, which is nil if it is not known. A time that the clock shows
// twice, or never, is an error.
func ParseTime(s string, clock *time.Location) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04Z07:00", "2006-01-02 15:04Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	for _, layout := range naive {
		local, err := time.Parse(layout, s)
		if err != nil {
			continue
		}
		if clock == nil {
			return local, fmt.Errorf("time %q has no offset, and the data does not state its zone; write it as %sZ or with an offset such as +01:00", s, local.Format("2006-01-02T15:04:05"))
		}
		return onClock(s, local, clock)
	}
	return time.Time{}, fmt.Errorf("time %q is not understood; write it as 2026-11-15T14:00:00Z or 2026-11-15 14:00", s)
}

// onClock returns the time at which a clock shows the date and time that local shows in UTC.
func onClock(s string, local time.Time, clock *time.Location) (time.Time, error) {
	shown := func(t time.Time) bool { return t.Format(time.DateTime) == local.Format(time.DateTime) }
	var found []time.Time
	for _, near := range []time.Duration{-24 * time.Hour, 24 * time.Hour} { // before and after a change of the clock
		_, offset := local.Add(near).In(clock).Zone()
		t := local.Add(-time.Duration(offset) * time.Second).In(clock)
		if shown(t) && (len(found) == 0 || !found[0].Equal(t)) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
		return local, fmt.Errorf("time %q does not exist in %s, because clocks are set forward then; write it with an offset such as Z", s, clock)
	case 2:
		return local, fmt.Errorf("time %q is ambiguous in %s, because clocks are set back then; write it as %s or %s", s, clock,
			found[0].Format(time.RFC3339), found[1].Format(time.RFC3339))
	}
	return found[0], nil
}

// ParseFit returns the number of steps for fitting personal layers, given as auto, never or
// a number.
func ParseFit(s string, usual int) (int, error) {
	switch s {
	case "auto":
		return usual, nil
	case "never":
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 1e6 {
		return 0, fmt.Errorf("%q is not possible; write auto, never or a number of steps", s)
	}
	return n, nil
}

// ParseLevels parses quantiles such as 0.1,0.5,0.9.
func ParseLevels(s string) (levels []float64, err error) {
	for text := range strings.SplitSeq(s, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(v > 0 && v < 1) || len(levels) > 0 && v <= levels[len(levels)-1] {
			return nil, fmt.Errorf("%q are not quantiles; write ascending numbers between 0 and 1, such as 0.1,0.5,0.9", s)
		}
		levels = append(levels, v)
	}
	return levels, nil
}

// ParseShare parses a share such as 2% or 0.02.
func ParseShare(s string) (float64, error) {
	text, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v < 1) {
		return 0, fmt.Errorf("%q is not a share; write one such as 2%%, less than 100%%", s)
	}
	return v, nil
}
