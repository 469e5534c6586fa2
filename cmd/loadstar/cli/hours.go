package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"loadstar/fed"
)

// HoursUsage describes the value of a flag such as --h.
const HoursUsage = "hours, or a duration such as 30m or 2d"

// ParseHours parses a length of time such as 48h, 90m or 2d, or a number of hours such as 48.
func ParseHours(s string) (time.Duration, error) {
	if n, err := strconv.Atoi(s); err == nil && n < 1<<20 {
		return time.Duration(n) * time.Hour, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n < 1<<15 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a length of time; write a number of hours, or one with a unit such as 48h or 2d", s)
	}
	return d, nil
}

// ParseSteps parses a length of time that must be a positive number of steps.
func ParseSteps(s string, step time.Duration) (int, error) {
	d, err := ParseHours(s)
	if err != nil {
		return 0, err
	}
	if d <= 0 || d%step != 0 {
		return 0, fmt.Errorf("%s is not a positive multiple of the interval of the readings, %s", s, fed.Duration(step))
	}
	return int(d / step), nil
}

// Stride returns the usual number of steps between scored origins: every step if only one step
// is forecast, and otherwise 6 hours.
func Stride(targets int, step time.Duration) int {
	if targets == 1 {
		return 1
	}
	return max(int(6*time.Hour/step), 1)
}
