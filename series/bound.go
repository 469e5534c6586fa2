package series

import (
	"math"
	"slices"
)

// These constants determine the largest plausible load of a client from the client's own
// readings. They are chosen so that, in the datasets of real homes and buildings, every reading
// beyond the bound is an error. In these datasets, a correct reading is at most 10 times the
// median of the daily maxima, and at most 30 times the median of the daily 90 % quantiles.
// Homes that stood empty exceed these factors, but none of them has used 15 kW.
const (
	boundFactor = 10
	boundCoarse = 30
	boundLeast  = 15 // kW, what a home can use after it stood empty
	boundDays   = 7  // days with readings that a bound needs
)

// Bound returns the largest load in kW, drawn or fed in, that is possible for a client with
// these readings: 10 times the median of its daily maxima, and at least 15 kW. The bound is
// infinite if fewer than 7 days have readings for at least half of their steps.
//
// Impossible readings must not raise the bound. If they fill less than half of the days, they
// do not move a median. If they are scattered over up to a tenth of each day, they do not
// move the median of the daily 90 % quantiles, and the maxima ignore readings above 30 times
// that median.
func Bound(load []float32, stepsPerDay int) float64 {
	days := len(load) / stepsPerDay
	if days < boundDays {
		return math.Inf(1)
	}
	load = load[len(load)-days*stepsPerDay:]
	buf := make([]float32, 0, stepsPerDay)
	each := func(do func(sorted []float32) float32) (float64, int) {
		of := make([]float32, 0, days)
		for at := 0; at < len(load); at += stepsPerDay {
			buf = buf[:0]
			for _, v := range load[at : at+stepsPerDay] {
				if !Missing(v) {
					buf = append(buf, float32(math.Abs(float64(v))))
				}
			}
			if 2*len(buf) >= stepsPerDay {
				of = append(of, do(buf))
			}
		}
		if len(of) == 0 {
			return 0, 0
		}
		slices.Sort(of)
		return float64(of[len(of)/2]), len(of)
	}
	high, n := each(func(day []float32) float32 {
		slices.Sort(day)
		return day[(len(day)*9+9)/10-1]
	})
	if n < boundDays {
		return math.Inf(1)
	}
	coarse := float32(max(boundCoarse*high, boundLeast))
	peak, _ := each(func(day []float32) (most float32) {
		for _, v := range day {
			if v <= coarse {
				most = max(most, v)
			}
		}
		return most
	})
	return max(boundFactor*peak, boundLeast)
}

// Beyond reports whether a load is beyond a bound. A missing load is not beyond any bound.
func Beyond(kw float32, bound float64) bool { return math.Abs(float64(kw)) > bound }

// Impossible returns the steps whose readings are beyond the bound of the whole series and
// beyond the bounds of the 28 days before, around and after them. A lasting change of scale is
// therefore accepted from its first reading on, once it fills half of 28 days.
func Impossible(load []float32, stepsPerDay int) (steps []int) {
	bound := Bound(load, stepsPerDay)
	if math.IsInf(bound, 1) {
		return nil
	}
	around := 0.0 // bound of the 28 days around the step
	until := -1   // the last step to which the bound applies
	for i, v := range load {
		if !Beyond(v, bound) {
			continue
		}
		if i >= until {
			around, until = boundAround(load, i, stepsPerDay), i+stepsPerDay-i%stepsPerDay
		}
		if Beyond(v, around) {
			steps = append(steps, i)
		}
	}
	return steps
}

// BoundSpan is the number of days that Impossible examines around a reading. A lasting change
// of scale is accepted once it fills half of them.
const BoundSpan = 28

// boundAround returns the largest bound of the 28 days before, around and after a step, or 0 if
// they have too few readings.
func boundAround(load []float32, i, stepsPerDay int) (largest float64) {
	span := BoundSpan * stepsPerDay
	day := i - i%stepsPerDay
	for _, from := range []int{day - span + stepsPerDay, day - span/2, day} {
		from = max(min(from, len(load)-span), 0)
		bound := Bound(load[from:min(from+span, len(load))], stepsPerDay)
		if !math.IsInf(bound, 1) {
			largest = max(largest, bound)
		}
	}
	return largest
}

// Plausible returns the dataset without impossible readings, and the number of removed readings
// by meter name. It returns d itself if no reading is impossible.
func (d *Dataset) Plausible() (*Dataset, map[string]int, error) {
	found := map[string]int{}
	var meters []Meter
	for i := range d.Len() {
		m := d.Meter(i)
		if steps := Impossible(m.Load, d.StepsPerDay()); len(steps) > 0 {
			m = m.Without(steps)
			found[m.ID] = len(steps)
		}
		meters = append(meters, m)
	}
	if len(found) == 0 {
		return d, nil, nil
	}
	plausible, err := d.With(meters)
	return plausible, found, err
}

// Without returns the meter without the readings of the given steps.
func (m Meter) Without(steps []int) Meter {
	m.Load = slices.Clone(m.Load)
	for _, i := range steps {
		m.Load[i] = float32(math.NaN())
	}
	return m
}
