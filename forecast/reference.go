package forecast

import (
	"fmt"
	"math"

	"loadstar/series"
)

// Reference is a simple forecast whose error is the divisor of the relative MAE. The empty
// Reference means Auto.
type Reference string

const (
	// Auto is LastValue if only the next step is forecast, and LastWeek otherwise.
	Auto Reference = "auto"
	// LastValue is the newest known load.
	LastValue Reference = "last-value"
	// LastDay is the load at the same clock time on the newest known day, as in the baseline
	// naive-day.
	LastDay Reference = "last-day"
	// LastWeek is the load at the same clock time on the newest known day that is a
	// multiple of 7 days before the target, as in the baseline naive-week.
	LastWeek Reference = "last-week"
)

// For returns the reference for forecasts with the given layout. The result is never Auto.
func (r Reference) For(l series.Layout) Reference {
	if r != Auto && r != "" {
		return r
	}
	if l.Horizon == 1 && l.Targets == 1 {
		return LastValue
	}
	return LastWeek
}

func (r Reference) About() string {
	switch r {
	case LastValue:
		return "repeating the last known load"
	case LastDay:
		return "the load at the same time a day before"
	case LastWeek:
		return "the load at the same time a week before"
	}
	return string(r)
}

// check returns an error if r is not one of the references.
func (r Reference) check() error {
	switch r {
	case "", Auto, LastValue, LastDay, LastWeek:
		return nil
	}
	return fmt.Errorf("no reference %q; there are %s, %s, %s and %s", string(r), string(Auto), string(LastValue), string(LastDay), string(LastWeek))
}

// blendReference returns the reference with which forecasts of the given layout are blended.
// This reference follows a change of the load within a day. Last week's load takes a week, and
// blends with it had larger errors on validation data.
func blendReference(l series.Layout) Reference {
	if l.Horizon == 1 && l.Targets == 1 {
		return LastValue
	}
	return LastDay
}

// reference writes the reference forecasts of all targets to out, given that step last is
// the newest step with known load. Values that are unknown are NaN.
func (c *Client) reference(out []float64, last int, r Reference) {
	l := c.Frame.Layout()
	for i := range out {
		switch r.For(l) {
		case LastValue:
			out[i] = c.load(last)
		case LastDay:
			out[i] = c.sameTime(last+l.Horizon+i, last, 1)
		case LastWeek:
			out[i] = c.sameTime(last+l.Horizon+i, last, 7)
		default:
			out[i] = math.NaN()
		}
	}
}
