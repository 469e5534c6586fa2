package metric

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Quantiles accumulates the errors of quantile forecasts in constant memory. The order of
// the forecasts does not matter. A Quantiles is not safe for concurrent use.
type Quantiles struct {
	levels []float64
	n      int
	losses []sum // pinball losses, by level
	below  []int // actuals below the quantile, by level
	above  []int // actuals above the quantile, by level
}

// sameLevel is the maximum difference between two levels that count as equal, because in
// floating point 1-0.9 is not exactly 0.1.
const sameLevel = 1e-9

// NewQuantiles returns an empty accumulator for forecasts of the given levels. The levels
// must be ascending and within (0, 1).
func NewQuantiles(levels ...float64) (*Quantiles, error) {
	before := 0.0
	for _, q := range levels {
		if !(q > before && q < 1) {
			return nil, fmt.Errorf("metric: quantiles %v; want them to ascend within (0, 1)", levels)
		}
		before = q
	}
	if len(levels) == 0 {
		return nil, fmt.Errorf("metric: no quantiles; want at least one, such as 0.5")
	}
	return &Quantiles{
		levels: slices.Clone(levels),
		losses: make([]sum, len(levels)),
		below:  make([]int, len(levels)),
		above:  make([]int, len(levels)),
	}, nil
}

// Add counts one target, with one forecast per level, in the order of the levels. It does
// not retain the slice. If a number is not finite, or the forecasts cross, Add returns an
// error and counts nothing.
func (q *Quantiles) Add(forecasts []float64, actual float64) error {
	if len(forecasts) != len(q.levels) {
		return fmt.Errorf("metric: %d quantile forecasts; want one for each of %v", len(forecasts), q.levels)
	}
	for i, f := range forecasts {
		if !(math.Abs(actual-f) <= largest) {
			return fmt.Errorf("metric: P%v forecast %v for actual %v: want finite numbers; check the model and the data", 100*q.levels[i], f, actual)
		}
	}
	if !slices.IsSorted(forecasts) {
		return fmt.Errorf("metric: quantile forecasts %v cross; sort them first", forecasts)
	}
	q.n++
	for i, f := range forecasts {
		q.losses[i].add(pinball(q.levels[i], f, actual))
		switch {
		case actual < f:
			q.below[i]++
		case actual > f:
			q.above[i]++
		}
	}
	return nil
}

func pinball(level, forecast, actual float64) float64 {
	e := actual - forecast
	return max(level*e, (level-1)*e)
}

// Losses returns the mean pinball loss of each level q, max(q·e, (q-1)·e) with e = actual -
// forecast; NaN without targets.
func (q *Quantiles) Losses() []float64 {
	losses := make([]float64, len(q.levels))
	for i, s := range q.losses {
		losses[i] = ratio(s.value(), float64(q.n))
	}
	return losses
}

// Shares returns, for each level, the share of actuals that are not above the forecast; NaN
// without targets. For a calibrated forecast, the share is about the level.
func (q *Quantiles) Shares() []float64 {
	shares := make([]float64, len(q.levels))
	for i, above := range q.above {
		shares[i] = ratio(float64(q.n-above), float64(q.n))
	}
	return shares
}

// LevelName returns the name of a quantile in tables, such as P05 for 0.05, P50 for 0.5 and
// P97.5 for 0.975.
func LevelName(level float64) string {
	percent := math.Round(1e6*level) / 1e4
	if percent < 10 {
		return "P0" + strconv.FormatFloat(percent, 'f', -1, 64)
	}
	return "P" + strconv.FormatFloat(percent, 'f', -1, 64)
}

// Loss returns the mean pinball loss over all levels; NaN without targets.
func (q *Quantiles) Loss() float64 {
	var total sum
	for _, loss := range q.Losses() {
		total.add(loss)
	}
	return ratio(total.value(), float64(len(q.levels)))
}

// CRPS returns the usual approximation of the continuous ranked probability score from
// quantiles. The exact score is the integral of twice the pinball loss over all levels from 0
// to 1. The approximation is twice the mean pinball loss over the given levels. If the median
// is the only level, the approximation equals the mean absolute error.
//
// The mean approximates the integral only if the levels are evenly spaced and symmetric
// around 1/2, such as 0.1, 0.2 ... 0.9. For other levels, and without targets, the result
// is NaN. Do not compare scores that were computed with different levels.
func (q *Quantiles) CRPS() float64 {
	if !q.even() {
		return math.NaN()
	}
	return 2 * q.Loss()
}

// even reports whether levels are equally spaced and symmetric around 1/2.
func (q *Quantiles) even() bool {
	last := len(q.levels) - 1
	for i, level := range q.levels {
		if math.Abs(level+q.levels[last-i]-1) > sameLevel {
			return false
		}
		if i > 1 && math.Abs(level-2*q.levels[i-1]+q.levels[i-2]) > sameLevel {
			return false
		}
	}
	return true
}

// Coverage returns the share of actuals between the forecasts of two levels, inclusive;
// NaN without targets. For a calibrated forecast, the share is about upper - lower.
func (q *Quantiles) Coverage(lower, upper float64) (float64, error) {
	i, j := slices.Index(q.levels, lower), slices.Index(q.levels, upper)
	if i < 0 || j <= i {
		return 0, fmt.Errorf("metric: coverage of quantiles %v to %v; want two of %v in this order", lower, upper, q.levels)
	}
	return ratio(float64(q.n-q.below[i]-q.above[j]), float64(q.n)), nil
}

// Central returns the levels of the widest central interval, such as 0.1 and 0.9,
// or false if no two levels mirror each other around 1/2.
func (q *Quantiles) Central() (lower, upper float64, ok bool) {
	for i, lower := range q.levels {
		for _, upper := range q.levels[i+1:] {
			if math.Abs(lower+upper-1) <= sameLevel {
				return lower, upper, true
			}
		}
	}
	return math.NaN(), math.NaN(), false
}

// Scores returns every metric with its name. Coverage refers to the widest central interval,
// and is NaN if there is none.
func (q *Quantiles) Scores() Scores {
	coverage := math.NaN()
	if lower, upper, ok := q.Central(); ok {
		coverage, _ = q.Coverage(lower, upper) // no error, because both are levels of q
	}
	return Scores{
		{"pinball", q.Loss()},
		{"coverage", coverage},
		{"crps", q.CRPS()},
	}
}

// MarshalJSON writes the scores, the number of targets, and the interval that the coverage
// refers to.
func (q Quantiles) MarshalJSON() ([]byte, error) {
	lower, upper, _ := q.Central()
	return slices.Concat(Scores{{"n", float64(q.n)}}, q.Scores(), Scores{
		{"coverage_lower", lower},
		{"coverage_upper", upper},
	}).MarshalJSON()
}
