package fed

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/textfmt"
)

// Timespan is a part of a series: a number of its steps, or a duration. A duration becomes a
// number of steps when the plan is resolved for data.
type Timespan struct {
	steps  int
	length time.Duration // 0 if the span counts steps
}

// Steps returns a span of n steps.
func Steps(n int) Timespan { return Timespan{steps: n} }

// Lasting returns a span with the given duration, which must be positive.
func Lasting(d time.Duration) Timespan { return Timespan{length: d} }

// ParseTimespan reads a span: 96 is a number of steps, and 24h is a duration. Durations must be
// whole minutes, so that a plan without data cannot require arbitrarily many steps.
func ParseTimespan(s string) (Timespan, error) {
	if n, err := strconv.Atoi(s); err == nil {
		return Steps(n), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Minute || d%time.Minute != 0 {
		return Timespan{}, fmt.Errorf("%q is neither a number of steps nor a duration of whole minutes; write one such as 96 or 24h", s)
	}
	return Lasting(d), nil
}

// Steps returns the number of steps. It panics if the span is a duration, because the plan
// must be resolved first.
func (s Timespan) Steps() int {
	if s.length != 0 {
		panic(fmt.Sprintf("fed: the plan is not resolved, so the number of steps in %s is unknown", s))
	}
	return s.steps
}

// Length returns the duration, or 0 if the span counts steps.
func (s Timespan) Length() time.Duration { return s.length }

// In returns the number of steps of the given length. A duration must be a multiple of the
// step. The error message is worded to follow the name of a setting.
func (s Timespan) In(step time.Duration) (int, error) {
	switch {
	case s.length == 0:
		return s.steps, nil
	case step <= 0 || s.length%step != 0:
		return 0, fmt.Errorf("%s is not a multiple of the data's step of %s", s, Duration(step))
	}
	return int(s.length / step), nil
}

// String returns the span in the syntax of [ParseTimespan].
func (s Timespan) String() string {
	if s.length == 0 {
		return strconv.Itoa(s.steps)
	}
	return Duration(s.length).String()
}

// UnmarshalYAML reads a span in the syntax of [ParseTimespan].
func (s *Timespan) UnmarshalYAML(n *yaml.Node) (err error) {
	if *s, err = ParseTimespan(n.Value); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	return nil
}

// MarshalYAML writes a span in the syntax of [ParseTimespan].
func (s Timespan) MarshalYAML() (any, error) {
	if s.length == 0 {
		return s.steps, nil
	}
	return s.String(), nil
}

// String returns the duration without trailing zero units: 1h, not 1h0m0s.
func (d Duration) String() string { return textfmt.Duration(time.Duration(d)) }
