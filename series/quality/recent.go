package quality

import (
	"math"
	"slices"

	"loadstar/series"
)

const (
	recentDays = 7
	// beforeDays is the number of earlier days that define the usual values. leastBefore is the
	// minimum number of these days that need readings.
	beforeDays, leastBefore = 28, 7
	// recentJump is the factor by which both low and high values of a day must differ from the
	// earlier values. Loads do not change by so much, but a wrong unit, such as W instead of kW,
	// has this effect.
	recentJump = 20
	// evenJump is the factor by which the changes of low and high values may differ.
	evenJump = 4
	// recentFlat is the number of hours without change that counts as flat. recentZeros is
	// the number of hours of zeros that count as gaps.
	recentFlat, recentZeros = 12, 6
	// recentShift is the number of hours by which the profile must shift. Daylight saving shifts
	// it by only one hour.
	recentShift = 2
)

// Recent returns the codes of problems in the last 7 days of a load series: unit-jump, flat,
// zeros-as-gaps and clock-shift. Load ends with the newest step and should cover 35 days.
// Without a few weeks of readings, Recent finds nothing. Recent needs so little time and memory
// that it can be called for each client every hour.
func Recent(load []float32, stepsPerDay int) []Code {
	load = load[max(0, len(load)-(recentDays+beforeDays)*stepsPerDay):]
	cut := len(load) - recentDays*stepsPerDay
	if cut < leastBefore*stepsPerDay {
		return nil
	}
	before, recent := load[:cut], load[cut:]
	usual := present(before)
	if len(usual) < leastBefore*stepsPerDay {
		return nil
	}
	slices.Sort(usual)
	var codes []Code
	if unitJumped(usual, recent, stepsPerDay) {
		// Runs and profiles in another unit are not comparable.
		return []Code{codeUnitJump}
	}
	if run := max(recentFlat*stepsPerDay/24, 4); longestRun(recent, isConstant) >= max(run, 2*longestRun(before, isConstant)) {
		codes = append(codes, codeFlat)
	}
	if run := max(recentZeros*stepsPerDay/24, 4); usual[len(usual)/20] > 0 && longestRun(recent, isZero) >= max(run, 2*longestRun(before, isZero)) {
		codes = append(codes, codeZerosAsGaps)
	}
	if clockShifted(before, recent, stepsPerDay) {
		codes = append(codes, codeClockShift)
	}
	return codes
}

// present returns the known values.
func present(load []float32) []float32 {
	known := make([]float32, 0, len(load))
	for _, v := range load {
		if !series.Missing(v) {
			known = append(known, v)
		}
	}
	return known
}

// unitJumped reports whether the newest day with enough readings has values in another unit
// than the sorted earlier values.
func unitJumped(usual, recent []float32, perDay int) bool {
	for end := len(recent); end >= perDay; end -= perDay {
		day := present(recent[end-perDay : end])
		if 2*len(day) < perDay {
			continue
		}
		slices.Sort(day)
		low := float64(day[len(day)/10]) / float64(usual[len(usual)/10])
		high := float64(day[len(day)*9/10]) / float64(usual[len(usual)*9/10])
		if !(low > 0 && high > 0) || math.IsInf(low, 0) || math.IsInf(high, 0) {
			return false
		}
		return (min(low, high) > recentJump || max(low, high) < 1./recentJump) && low < evenJump*high && high < evenJump*low
	}
	return false
}

func isConstant(v, previous float32) bool { return v == previous && v != 0 }
func isZero(v, _ float32) bool            { return v == 0 }

// longestRun returns the length of the longest run of steps for which in is true, given the
// value of a step and the value of the previous step.
func longestRun(load []float32, in func(v, previous float32) bool) int {
	longest, n := 0, 0
	for i, v := range load {
		if in(v, load[max(i-1, 0)]) && i > 0 {
			n++
		} else {
			n = 0
		}
		longest = max(longest, n)
	}
	return longest
}

// clockShifted reports whether the mean daily profile of the recent days fits the profile of
// the days before much better if it is shifted by two hours or more.
func clockShifted(before, recent []float32, perDay int) bool {
	old, ok1 := dailyProfile(before, perDay)
	now, ok2 := dailyProfile(recent, perDay)
	if !ok1 || !ok2 {
		return false
	}
	distance := func(shift int) (sum float64) {
		for i, v := range now {
			d := v - old[(i+shift+perDay)%perDay]
			sum += float64(d * d)
		}
		return sum
	}
	var spread float64
	for _, v := range old {
		spread += float64(v * v)
	}
	best, at := math.Inf(1), 0
	for shift := -perDay / 2; shift < perDay/2; shift++ {
		if d := distance(shift); d < best {
			best, at = d, shift
		}
	}
	// The shifted profile must explain most of the difference that the unshifted profile does
	// not explain.
	return max(at, -at)*24 >= recentShift*perDay && distance(0) > 0.5*spread && best < 0.25*distance(0) && best < 0.2*spread
}

// dailyProfile returns the mean load of each step of a day, minus the mean over all steps,
// divided by the mean absolute deviation of the steps. It returns false if a step is not known
// or all steps are equal.
func dailyProfile(load []float32, perDay int) ([]float64, bool) {
	p, n := make([]float64, perDay), make([]float64, perDay)
	// Days end with the newest step, so that both profiles have the same phase.
	for i, v := range load {
		if at := (i - len(load)%perDay + perDay) % perDay; !series.Missing(v) {
			p[at] += float64(v)
			n[at]++
		}
	}
	var mean, deviation float64
	for i := range p {
		if n[i] < 4 {
			return nil, false
		}
		p[i] /= n[i]
		mean += p[i] / float64(perDay)
	}
	for i := range p {
		p[i] -= mean
		deviation += math.Abs(p[i]) / float64(perDay)
	}
	for i := range p {
		p[i] /= deviation
	}
	return p, deviation > 0
}
