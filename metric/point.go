// Package metric measures the error of forecasts: point forecasts ([Point]), quantile
// forecasts ([Quantiles]), the spread of a metric over a fleet of clients ([Fleet]), and
// whether two forecasts differ by more than chance ([DieboldMariano]).
//
// Metrics have the unit of the load. Shares and percentages are fractions, so a MAPE of
// 0.04 is 4 %. A metric that is not defined, such as a ratio to a load of zero, is NaN in
// Go
// and null in JSON. A forecast that is not finite is an error.
package metric

import (
	"fmt"
	"math"
	"slices"
)

// Point accumulates the errors of point forecasts in constant memory. The order of the
// forecasts does not matter. The zero value is ready to use. A Point is not safe for
// concurrent use.
type Point struct {
	// MAPEFloor limits the MAPE to targets whose |actual| is above the floor. With 0, only
	// targets with an actual value of zero are left out. Set it before the first Add.
	MAPEFloor float64

	n           int
	errors      sum // forecast - actual
	absErrors   sum
	squares     sum
	actuals     sum
	absActuals  sum
	percentages sum // |error|/|actual| where |actual| exceeds MAPEFloor
	symmetric   sum // 2|error|/(|forecast|+|actual|)
	mapeLeftOut int
	scaled      sum // |error| where the reference is known
	references  sum // |reference - actual| where the reference is known

	relativeLeftOut int
}

// Add counts one target. For the relative MAE, reference is a simple forecast of the same
// target, or NaN if it is unknown. Add returns an error and counts nothing if any other number
// is not finite, or if a sum could overflow because a number is too large or an actual above
// the floor is too small.
func (p *Point) Add(forecast, actual, reference float64) error {
	if !(p.MAPEFloor >= 0) {
		return fmt.Errorf("metric: a MAPE floor of %v; want 0 or more", p.MAPEFloor)
	}
	e := forecast - actual
	abs, size := math.Abs(e), math.Abs(actual)
	if !(e*e <= largest && size <= largest) {
		return fmt.Errorf("metric: forecast %v for actual %v: want finite numbers up to 1e100; check the model and the data", forecast, actual)
	}
	referenceError := math.Abs(reference - actual)
	known := !math.IsNaN(reference)
	if known && !(referenceError <= largest) {
		return fmt.Errorf("metric: reference forecast %v: want a finite number, or NaN for unknown", reference)
	}
	counted := size > p.MAPEFloor
	percentage := abs / size
	if counted && !(percentage <= largest) {
		return fmt.Errorf("metric: an error of %v cannot be a percentage of actual %v; raise the MAPE floor above %v", abs, actual, p.MAPEFloor)
	}

	p.n++
	p.errors.add(e)
	p.absErrors.add(abs)
	p.squares.add(e * e)
	p.actuals.add(actual)
	p.absActuals.add(size)
	if counted {
		p.percentages.add(percentage)
	} else {
		p.mapeLeftOut++
	}
	if abs > 0 { // a correct forecast of zero has no error; avoid 0/0
		p.symmetric.add(2 * abs / (math.Abs(forecast) + size))
	}
	if known {
		p.scaled.add(abs)
		p.references.add(referenceError)
	} else {
		p.relativeLeftOut++
	}
	return nil
}

// N returns the number of targets.
func (p *Point) N() int { return p.n }

// MAE returns the mean absolute error; NaN without targets.
func (p *Point) MAE() float64 { return ratio(p.absErrors.value(), float64(p.n)) }

// RMSE returns the root of the mean squared error; NaN without targets.
func (p *Point) RMSE() float64 { return math.Sqrt(ratio(p.squares.value(), float64(p.n))) }

// Bias returns the mean of forecast - actual, which is positive if forecasts are too high.
// It is NaN without targets.
func (p *Point) Bias() float64 { return ratio(p.errors.value(), float64(p.n)) }

// NMAE returns the MAE divided by the mean load of the targets. It is NaN unless the mean load
// is positive. For a meter that exports on average, the NMAE would be negative and look better
// than that of a perfect forecast.
func (p *Point) NMAE() float64 { return ratio(p.absErrors.value(), p.actuals.value()) }

// WAPE returns sum|forecast - actual| / sum|actual|, which equals the NMAE if no load is
// negative. It is NaN if every actual is zero.
func (p *Point) WAPE() float64 { return ratio(p.absErrors.value(), p.absActuals.value()) }

// MAPE returns the mean of |forecast - actual| / |actual| over the actuals above
// the floor; NaN if there are none.
func (p *Point) MAPE() float64 {
	return ratio(p.percentages.value(), float64(p.n-p.mapeLeftOut))
}

// SMAPE returns the mean of 2|forecast - actual| / (|forecast| + |actual|), which
// is between 0 and 2; NaN without targets. A target of zero that is forecast as zero counts
// as 0.
func (p *Point) SMAPE() float64 { return ratio(p.symmetric.value(), float64(p.n)) }

// RelativeMAE returns the absolute error of the forecast divided by the absolute error of the
// reference:
//
//	sum_t |forecast(t) - actual(t)| / sum_t |reference(t) - actual(t)|
//
// A relative MAE below 1 means that the forecast is better than the reference. Both sums
// are over the targets whose reference is known. The relative MAE is NaN if there are no
// such targets, or if every one of them equals its reference.
//
// With the last known value as the reference, this is what bose2023 and bose2024 call MASE
// (bose2024, section 4.3).
//
// Deviations: none. bose2023 prints 1/T only in the numerator, which is a misprint.
func (p *Point) RelativeMAE() float64 { return ratio(p.scaled.value(), p.references.value()) }

// Scores returns every metric with its name. This is the only list of point metrics.
func (p *Point) Scores() Scores {
	return Scores{
		{"mae", p.MAE()},
		{"rmse", p.RMSE()},
		{"nmae", p.NMAE()},
		{"wape", p.WAPE()},
		{"mape", p.MAPE()},
		{"smape", p.SMAPE()},
		{"relative_mae", p.RelativeMAE()},
		{"bias", p.Bias()},
	}
}

// MarshalJSON writes the scores, the number of targets, and how many targets the MAPE and the
// relative MAE leave out.
func (p Point) MarshalJSON() ([]byte, error) {
	return slices.Concat(Scores{{"n", float64(p.n)}}, p.Scores(), Scores{
		{"mape_floor", p.MAPEFloor},
		{"mape_left_out", float64(p.mapeLeftOut)},
		{"relative_mae_left_out", float64(p.relativeLeftOut)},
	}).MarshalJSON()
}
