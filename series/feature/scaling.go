package feature

import (
	"math"
	"slices"

	"loadstar/series"
)

// kinds is the number of cells of a profile: hour of day for weekdays, Saturdays and
// Sundays.
const kinds = 3 * 24

// maxKnots is the number of values that represent the distribution of a client's loads.
const maxKnots = 256

// leastDeviation is the minimum standard deviation of a load in kW. It replaces smaller
// deviations.
const leastDeviation = 1e-6

// farthest limits scaled loads, so that no sum of them can overflow.
const farthest = 1e6

// Scaling contains everything in a client's training split on which the client's inputs depend.
type Scaling struct {
	// Mean and Deviation are the mean and the standard deviation of the load in kW.
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"deviation"`
	// Profile is the mean scaled load by kind of day (weekday, Saturday, Sunday) and hour,
	// or 0 where there is no load.
	Profile [kinds]float32 `json:"profile"`
	// Ranks is the distribution of the load.
	Ranks Ranks `json:"ranks"`
	// Temperature and Wind scale the weather.
	Temperature Moments `json:"temperature"`
	Wind        Moments `json:"wind"`
}

// Moments are a mean and a standard deviation.
type Moments struct {
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"deviation"`
}

// Ranks is a distribution: ascending values, with the share of loads below each value and the
// share of loads up to and including it. Shares between two values are interpolated.
type Ranks struct {
	Value []float32 `json:"value"`
	Below []float32 `json:"below"`
	Upto  []float32 `json:"upto"`
}

// newRanks returns the distribution of values, which it sorts. It is exact if there are at
// most maxKnots different values.
func newRanks(values []float32) Ranks {
	slices.Sort(values)
	n := len(values)
	knots := slices.Compact(slices.Clone(values))
	if len(knots) > maxKnots {
		knots = knots[:0]
		for k := range maxKnots {
			if v := values[k*(n-1)/(maxKnots-1)]; len(knots) == 0 || knots[len(knots)-1] != v {
				knots = append(knots, v)
			}
		}
	}
	r := Ranks{Value: slices.Clip(knots)}
	for _, v := range knots {
		below, _ := slices.BinarySearch(values, v)
		upto := below
		for upto < n && values[upto] == v {
			upto++
		}
		r.Below = append(r.Below, float32(float64(below)/float64(n)))
		r.Upto = append(r.Upto, float32(float64(upto)/float64(n)))
	}
	return r
}

// rank returns the rank of a value from -1 to 1. A value that occurs several times gets the
// mean of its ranks.
func (r *Ranks) rank(v float32) float32 {
	n := len(r.Value)
	if n == 0 {
		return 0
	}
	if v < r.Value[0] {
		return -1
	}
	// Find the last value that is at most v. A branch on the comparison would be mispredicted
	// half of the time, so that computing ranks would take longer than computing all other
	// inputs.
	at, size, key := 0, n, ordered(v)
	for size > 1 {
		half := size / 2
		at += half &^ int((key-ordered(r.Value[at+half]))>>63)
		size -= half
	}
	low := float64(r.Value[at])
	switch {
	case r.Value[at] == v:
		return float32(float64(r.Below[at]) + float64(r.Upto[at]) - 1)
	case at == n-1:
		return 1
	}
	share := (float64(v) - low) / (float64(r.Value[at+1]) - low)
	from, to := float64(r.Upto[at]), float64(r.Below[at+1])
	return float32(2*(from+float64((to-from)*share)) - 1)
}

// ordered converts a number that is not NaN to an integer. The integers have the order of
// the numbers, and the two zeros give the same integer.
func ordered(v float32) int64 {
	bits := int32(math.Float32bits(v + 0)) // -0 becomes 0
	return int64(bits ^ int32(uint32(bits>>31)>>1))
}

// scaled returns a load in standard deviations from the mean.
func (s *Scaling) scaled(kw float32) float32 {
	v := (float64(kw) - s.Mean) / s.Deviation
	if v > farthest {
		v = farthest
	} else if v < -farthest {
		v = -farthest
	}
	return float32(v)
}

// newScaling computes the scaling of a meter from its training split.
func (f *Frame) newScaling(m series.Meter) *Scaling { return f.ScalingOver(m, 0, f.framer.Train(m)) }

// ScalingOver computes the scaling of a meter from its steps in [from, to).
func (f *Frame) ScalingOver(m series.Meter, from, to int) *Scaling {
	load := make([]float32, 0, to-from)
	for _, v := range m.Load[from:to] {
		if !series.Missing(v) {
			load = append(load, v)
		}
	}
	own := moments(load)
	s := &Scaling{Mean: own.Mean, Deviation: max(own.Deviation, leastDeviation)}
	first := f.clock.first(m)
	var sums, counts [kinds]float64
	for i := from; i < to; i++ {
		if v := m.Load[i]; !series.Missing(v) {
			k := f.clock.steps[first+i].kind
			sums[k] += float64(s.scaled(v))
			counts[k]++
		}
	}
	for k := range sums {
		s.Profile[k] = float32(sums[k] / max(counts[k], 1))
	}
	s.Ranks = newRanks(load)
	s.Temperature = f.clock.temperature.moments(first+from, first+to)
	s.Wind = f.clock.wind.moments(first+from, first+to)
	return s
}

// moments returns the mean and the standard deviation of the values that are not missing,
// or 0 and 1 if there are none.
func moments(values []float32) Moments {
	n, sum := 0, 0.0
	for _, v := range values {
		if !series.Missing(v) {
			sum += float64(v)
			n++
		}
	}
	if n == 0 {
		return Moments{0, 1}
	}
	mean, squares := sum/float64(n), 0.0
	for _, v := range values {
		if !series.Missing(v) {
			d := float64(v) - mean
			squares += float64(d * d)
		}
	}
	return Moments{mean, math.Sqrt(squares / float64(n))}
}
