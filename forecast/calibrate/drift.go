package calibrate

import (
	"math"
	"slices"

	"loadstar/internal/stateformat"
)

const (
	// baselineDays is the number of days that define the usual ratio. They are the first days with
	// errors after a client began to use a model.
	baselineDays = 28
	// slack is the deviation that a day must exceed to count, limit is the sum of excesses that
	// raises an alarm, and clip is the maximum deviation that is counted for a day. All are in
	// units of the usual deviation.
	slack = 1
	limit = 8
	clip  = 4
	// leastDeviation is a lower limit for the usual deviation, so that small changes do not
	// raise an alarm if the ratio has hardly varied.
	leastDeviation = 0.05
	// coverageOff is the distance between the coverage and its goal that raises an alarm.
	// leastTargets, two weeks of hourly targets, is the minimum number of targets for judging
	// coverage.
	coverageOff  = 0.1
	leastTargets = 14 * 24
)

// Alarm is a reason why someone should check a client's model.
type Alarm string

// The alarms. The empty alarm means no alarm.
const (
	// Worse means that the model became worse compared with last week's load.
	Worse Alarm = "model-worse"
	// Coverage means that intervals contained too few or too many loads over 28 days.
	Coverage Alarm = "coverage"
)

// Detector judges a client's days since its model was staged. The zero value is ready for a
// model that was just staged. A Detector is not safe for concurrent use.
type Detector struct {
	// baseline contains the ratios of the first days. After that, usual and deviation are set.
	baseline         []float64
	usual, deviation float64
	sum              float64 // CUSUM
}

// Add judges a day, given the mean absolute errors of the model's own forecasts and of last
// week's load on the same targets. Days must be added in order, each only once. A day without
// errors is skipped. After an alarm, the sum restarts at 0.
func (d *Detector) Add(model, week float64) Alarm {
	x := difference(model, week)
	if math.IsNaN(x) {
		return ""
	}
	if d.deviation == 0 {
		if d.baseline = append(d.baseline, x); len(d.baseline) == baselineDays {
			d.finish()
		}
		return ""
	}
	z := max(-clip, min(clip, (x-d.usual)/d.deviation))
	if d.sum = max(0, d.sum+z-slack); d.sum < limit {
		return ""
	}
	d.sum = 0
	return Worse
}

// Ready reports whether the baseline days are over, so that alarms are possible.
func (d *Detector) Ready() bool { return d.deviation > 0 }

// Sum returns the sum of excesses as a share of the limit that raises an alarm.
func (d *Detector) Sum() float64 { return d.sum / limit }

// finish computes the usual ratio and its deviation, which is the median absolute deviation
// scaled to the standard deviation of a normal distribution.
func (d *Detector) finish() {
	d.usual = median(d.baseline)
	for i, x := range d.baseline {
		d.baseline[i] = math.Abs(x - d.usual)
	}
	d.deviation = max(float64(1.4826*median(d.baseline)), leastDeviation)
	d.baseline = nil
}

// median sorts the values and returns their median.
func median(x []float64) float64 {
	slices.Sort(x)
	n := len(x)
	return float64(0.5*x[(n-1)/2]) + float64(0.5*x[n/2])
}

// difference returns the difference of two errors relative to their mean. Near 0 it is close to
// the logarithm of their ratio but, unlike the logarithm, it has the same bits on every
// machine. Its magnitude is at most 2.
func difference(model, week float64) float64 {
	if !(model >= 0 && week >= 0 && model+week > 0) || math.IsInf(model+week, 0) {
		return math.NaN()
	}
	return 2 * (model - week) / (model + week)
}

// CheckCoverage judges the share of loads within an interval over 28 days. nominal is the share
// that the interval should contain. targets is the number of loads in these 28 days.
func CheckCoverage(coverage, nominal float64, targets int) Alarm {
	if targets >= leastTargets && math.Abs(coverage-nominal) > coverageOff {
		return Coverage
	}
	return ""
}

var detectorFormat = stateformat.Format{Name: "state of drift detection", Magic: "LODDRIFT", Version: 1}

// AppendBinary appends the detector's state to b.
func (d *Detector) AppendBinary(b []byte) ([]byte, error) {
	var w stateformat.Writer
	w.Float64s(d.baseline)
	w.Float64(d.usual)
	w.Float64(d.deviation)
	w.Float64(d.sum)
	return append(b, detectorFormat.Wrap(w.State())...), nil
}

// UnmarshalBinary replaces the detector's state with one that AppendBinary wrote. If the state
// is damaged, it returns an error and does not change the detector.
func (d *Detector) UnmarshalBinary(b []byte) error {
	_, b, err := detectorFormat.Unwrap(b)
	if err != nil {
		return err
	}
	var fresh Detector
	if err := detectorFormat.Read(b, func(r *stateformat.Reader) {
		fresh = Detector{baseline: r.Float64s(), usual: r.Float64(), deviation: r.Float64(), sum: r.Float64()}
	}); err != nil {
		return err
	}
	possible := len(fresh.baseline) < baselineDays && math.Abs(fresh.usual) <= 2 &&
		(fresh.deviation == 0 || fresh.deviation >= leastDeviation && fresh.deviation <= 4 && fresh.baseline == nil) &&
		fresh.sum >= 0 && fresh.sum < limit
	for _, x := range fresh.baseline {
		possible = possible && math.Abs(x) <= 2
	}
	if !possible {
		return detectorFormat.Damaged("its numbers are impossible")
	}
	*d = fresh
	return nil
}
