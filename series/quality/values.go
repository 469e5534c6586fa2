package quality

import (
	"math"
	"slices"

	"loadstar/internal/textfmt"
	"loadstar/series"
)

// Thresholds for findings about individual values and runs of values.
const (
	// If at least this share of the readings equals the previous reading, the report mentions
	// it, because the meter has a coarse resolution or many gaps were filled.
	repeatsInfo = 0.1
	// A run of equal values is a flat line if fewer than 1 % of series with the same length
	// and resolution would contain such a run by chance. It must also last at least 6 hours
	// and 4 steps.
	flatChance, flatHours, flatSteps = 0.01, 6, 4
	// If 10 % of the readings are stuck, filled or zero, a model learns to forecast them. A
	// few such hours a year do no harm.
	flatProblem, flatWarning = 0.1, 0.001
	// A value below 10 % of the usual daily minimum is not a real load. The minimum must be
	// at least lowQuanta times the meter's resolution, because otherwise zero is a normal
	// reading.
	lowShare, lowQuanta = 0.1, 5
	// The usual daily minimum is the median of the daily minima over this many days before and
	// after a day. This is long enough to bridge a holiday, and short enough to follow the
	// seasons.
	lowDays = 14
	// Homes have the highest peaks relative to their usual load. In a dataset of 330 homes,
	// all but three have a maximum below 3 times their 99.9 % quantile, and no value in the
	// top 1 % of a home is more than 1.5 times the next lower value.
	spikeFactor, spikeJump, spikeOver99 = 3, 1.5, 2
	// The meter limits the values at the maximum if the maximum occurs at least ten times, and
	// ten times as often as all other values within 10 % of the maximum together.
	clippedLeast, clippedNear = 10, 0.9
	// A value that includes the energy of one missing reading is about twice as high as it
	// should be. A load that rises can look the same, so a warning needs at least
	// catchUpWarning such values.
	catchUpFactor, catchUpWarning = 1.5, 3
	// A step with three readings instead of two is 50 % too high. Normal load has few such
	// peaks in a fortnight, and they differ in height. A refrigerator always adds the same
	// kW, whereas an extra reading adds the same share. A beat lasts at least two months.
	beatDays, beatBlocks, beatPeak, beatMost, beatEven, beatShare, beatSpread = 14, 4, 1.3, 2.2, 0.15, 0.1, 0.1
	// Individual dropouts are normal. If they affect more than this share of the values, or
	// about nine hours a year, a warning reports them.
	dropoutsWarning = 0.001
)

// longRun returns the minimum length of a run of equal values that is unlikely to occur by
// chance, but not less than least. Counts[k] is the number of runs of length k+1 in the
// series. Meters with a coarse resolution repeat values, at night more than by day, so
// longRun uses the largest probability that a run continues.
func longRun(counts []int, least int) int {
	reach := slices.Clone(counts) // runs of length k+1 or more
	for k := len(reach) - 2; k >= 0; k-- {
		reach[k] += reach[k+1]
	}
	// enough is the minimum number of runs from which to estimate a probability.
	const enough = 30
	long := least
	for k := 0; k+1 < len(reach) && reach[k] >= enough; k++ {
		on := float64(reach[k+1]) / float64(reach[k])
		if on == 0 {
			continue
		}
		if on == 1 {
			return math.MaxInt
		}
		// An estimated reach[k]·on^n runs continue for n more steps.
		long = max(long, k+1+int(math.Ceil(math.Log(flatChance/float64(reach[k]))/math.Log(on))))
	}
	return long
}

// findFlat looks for runs of equal values that the meter's resolution does not explain.
// Runs of zeros are marked for findLow, which reports them as gaps.
func (s *subject) findFlat() {
	r := s.report
	if r.Repeats >= repeatsInfo {
		s.find(codeRepeats, Info, 1, int(r.Repeats*float64(r.Present)+0.5), nil, "%s of the values equal the previous one.", percent(r.Repeats))
	}
	day := s.d.StepsPerDay()
	values, zeros := make([]int, day), make([]int, day)
	s.eachEqual(func(first, n int) {
		counts := values
		if s.load[first] == 0 {
			counts = zeros
		}
		// Longer runs are the faults that findFlat looks for, so they must not count as
		// normal.
		if n <= day/2 {
			counts[n-1]++
		}
	})
	least := max(flatSteps, s.hours(flatHours))
	long, longZero := longRun(values, least), longRun(zeros, max(flatSteps, day))
	var top topPlaces
	s.eachEqual(func(first, n int) {
		zero := s.load[first] == 0
		switch {
		case zero && n >= longZero:
			for i := range n {
				s.odd[first+i] = true
			}
		case !zero && n >= long:
			for i := range n {
				s.odd[first+i], s.flat[first+i] = true, true
			}
			r.Flat.add(Runs{1, n, n, s.time(first)})
			top.add(Where{s.time(first), n, float64(s.load[first])}, float64(n))
		}
	})
	if r.Flat.Count == 0 {
		return
	}
	share, severity := float64(r.Flat.Steps)/float64(r.Present), Info
	if share > flatProblem {
		severity = Problem
	} else if share > flatWarning || r.Flat.Longest >= day {
		severity = Warning
	}
	s.find(codeFlat, severity, r.Flat.Count, r.Flat.Steps, top.inOrder(), "%s of the values are in %s of %s or more; the longest is %s from %s.",
		percent(share), textfmt.Count(r.Flat.Count, "flat line"), s.duration(long), s.duration(r.Flat.Longest), stamp(r.Flat.LongestAt))
}

func (s *subject) findNegatives() {
	if n := s.report.Negatives; n > 0 {
		s.find(codeNegatives, Warning, n, n, nil, "%s of the values are below zero, down to %s kW.", percent(float64(n)/float64(s.report.Present)), short(quantile(s.sorted, 0)))
	}
}

// findLow looks for values at or near zero on days when the load is well above zero.
func (s *subject) findLow() {
	limits := s.lowLimits()
	limit := math.Inf(-1)
	day := -1
	at := func(i int) float64 { // the limit at step i; calls must be in ascending order of i
		for day+1 < len(s.days) && s.days[day+1].first <= i {
			day++
			limit = limits[day]
		}
		return limit
	}
	r := s.report
	asGaps, kept, dropouts := 0, 0, 0
	var zeroPlaces, dropPlaces topPlaces
	s.eachRun(func(i int) bool { return s.load[i] == 0 }, func(first, n int) {
		if !s.odd[first] && at(first) <= 0 {
			kept += n
			return
		}
		asGaps += n
		for i := range n {
			s.odd[first+i] = true
		}
		zeroPlaces.add(Where{Time: s.time(first), Steps: n}, float64(n))
	})
	day, limit = -1, math.Inf(-1)
	s.eachRun(func(i int) bool { return float64(s.load[i]) < at(i) && s.load[i] > 0 && !s.odd[i] }, func(first, n int) {
		dropouts += n
		for i := range n {
			s.odd[first+i] = true
		}
		dropPlaces.add(Where{s.time(first), n, float64(s.load[first])}, float64(n))
	})
	share := func(n int) float64 { return float64(n) / float64(r.Present) }
	if kept > 0 {
		s.find(codeZeros, Info, kept, kept, nil, "%s of the values are zeros at times when the load is low: they may be real, or gaps.", percent(share(kept)))
	}
	if asGaps > 0 {
		severity := Info
		if share(asGaps) > flatProblem {
			severity = Problem
		} else if share(asGaps) > dropoutsWarning {
			severity = Warning
		}
		s.find(codeZerosAsGaps, severity, asGaps, asGaps, zeroPlaces.inOrder(), "%s of the values are zeros at times when the load is usually well above zero, or for days on end: gaps, or a building that was switched off.", percent(share(asGaps)))
	}
	if dropouts > 0 {
		severity := Info
		if share(dropouts) > dropoutsWarning {
			severity = Warning
		}
		s.find(codeDropouts, severity, dropouts, dropouts, dropPlaces.inOrder(), "%s of the values are nearly zero, less than a tenth of the usual daily minimum.", percent(share(dropouts)))
	}
}

// lowLimits returns, for every day, the limit below which a reading is not a real load. The
// limit is a share of the usual daily minimum in the weeks before and after the day, or
// -Inf if that minimum is near zero or unknown.
func (s *subject) lowLimits() []float64 {
	least := make([]float32, len(s.days)) // the minimum of each day, or NaN
	for k, d := range s.days {
		low, n := float32(math.Inf(1)), 0
		for i := d.first; i < d.end; i++ {
			if s.ok(i) {
				low = min(low, s.load[i])
				n++
			}
		}
		least[k] = low
		if 4*n < 3*s.d.StepsPerDay() {
			least[k] = float32(math.NaN())
		}
	}
	quantum := s.quantum()
	limits := make([]float64, len(s.days))
	for k := range limits {
		s.buf = s.buf[:0]
		for _, v := range least[max(0, k-lowDays):min(len(least), k+lowDays+1)] {
			if !series.Missing(v) {
				s.buf = append(s.buf, v)
			}
		}
		limits[k] = math.Inf(-1)
		if len(s.buf) < lowDays {
			continue
		}
		if low := medianOf(s.buf); low >= lowQuanta*quantum {
			limits[k] = lowShare * low
		}
	}
	return limits
}

// quantum returns the smallest difference between two values, which is the resolution of
// a coarse meter.
func (s *subject) quantum() float64 {
	// Ignore differences that come from rounding to float32.
	const slack = 1e-5
	q := math.Inf(1)
	for i := 1; i < len(s.sorted); i++ {
		if d := float64(s.sorted[i]) - float64(s.sorted[i-1]); d > slack*math.Abs(float64(s.sorted[i])) {
			q = min(q, d)
		}
	}
	return q
}

// findSpikes looks for values far above all others: above a jump in the sorted values, or
// far above the 99.9 % quantile. A high first value after a gap is reported as a catch-up
// instead, because the meter accumulated the energy of the gap.
func (s *subject) findSpikes() {
	var caught, spikes topPlaces
	n := 0
	for i := 1; i < len(s.load); i++ {
		if s.ok(i) && series.Missing(s.load[i-1]) && s.catchesUp(i) {
			n++
			s.odd[i] = true
			caught.add(Where{s.time(i), 1, float64(s.load[i])}, float64(s.load[i]))
		}
	}
	if n > 0 {
		severity := Info
		if n >= catchUpWarning {
			severity = Warning
		}
		s.find(codeCatchUp, severity, n, n, caught.inOrder(), "Right after gaps, %s far above the values of the surrounding days, up to %s kW: the meter may have accumulated the energy of the gap.",
			areMany(n, "value"), short(largest(caught.where)))
	}
	s.findClipped()
	limit := s.spikeLimit()
	runs, steps := 0, 0
	s.eachRun(func(i int) bool { return s.ok(i) && float64(s.load[i]) >= limit }, func(first, n int) {
		runs++
		steps += n
		top := s.load[first]
		for i := range n {
			s.odd[first+i] = true
			top = max(top, s.load[first+i])
		}
		spikes.add(Where{s.time(first), n, float64(top)}, float64(top))
	})
	if runs > 0 {
		p99 := s.report.Level.P99
		s.find(codeSpikes, Warning, runs, steps, spikes.inOrder(), "%s up to %s kW, where 99 %% of the values are below %s kW.", textfmt.Count(runs, "spike"), short(largest(spikes.where)), short(p99))
	}
}

// findImpossible reports the readings that are far above the client's usual load.
func (s *subject) findImpossible() {
	if len(s.beyond) == 0 {
		return
	}
	var top topPlaces
	for i := 0; i < len(s.beyond); {
		first, most, n := s.beyond[i], float32(0), 0
		for i < len(s.beyond) && s.beyond[i] == first+n {
			if v := s.load[s.beyond[i]]; math.Abs(float64(v)) > math.Abs(float64(most)) {
				most = v
			}
			i, n = i+1, n+1
		}
		top.add(Where{s.time(first), n, float64(most)}, math.Abs(float64(most)))
	}
	s.find(codeImpossible, Problem, len(s.beyond), len(s.beyond), top.inOrder(), "%s of the values cannot be right: up to %s kW, where the largest of the others is %s kW. They are not used.",
		percent(float64(len(s.beyond))/float64(s.report.Present)), short(largest(top.where)), short(s.report.Level.Max))
}

// findClipped looks for a maximum that occurs often while hardly any other value is close
// to it.
func (s *subject) findClipped() {
	top := s.sorted[len(s.sorted)-1]
	n, near := 0, 0
	for i := len(s.sorted) - 1; i >= 0 && s.sorted[i] > clippedNear*top; i-- {
		if s.sorted[i] == top {
			n++
		} else {
			near++
		}
	}
	if top <= 0 || n < clippedLeast || n < clippedLeast*near {
		return
	}
	var where topPlaces
	s.eachRun(func(i int) bool { return s.ok(i) && s.load[i] == top }, func(first, n int) {
		for i := range n {
			s.odd[first+i] = true
		}
		where.add(Where{s.time(first), n, float64(top)}, float64(n))
	})
	if len(where.where) > 0 {
		s.find(codeClipped, Warning, n, n, where.inOrder(), "%d values are exactly %s kW, the maximum, and only %d are close to it: the values seem to be limited.", n, short(float64(top)), near)
	}
}

// catchesUp reports whether the value after a gap is far above the values of the day
// before the gap and the day after it.
func (s *subject) catchesUp(i int) bool {
	day := s.d.StepsPerDay()
	last := i - 1
	for series.Missing(s.load[last]) {
		last-- // the gap ends, because there is a reading at step 0
	}
	high, n := float32(0), 0
	look := func(from, to int) {
		for k := max(0, from); k < min(to, len(s.load)); k++ {
			if s.ok(k) {
				high = max(high, s.load[k])
				n++
			}
		}
	}
	look(last-day+1, last+1)
	look(i+1, i+1+day)
	return n >= day && float64(s.load[i]) > catchUpFactor*float64(high)
}

// spikeLimit returns the smallest value that counts as a spike.
func (s *subject) spikeLimit() float64 {
	limit := math.Inf(1)
	if p := quantile(s.sorted, 0.999); p > 0 {
		limit = spikeFactor * p
	}
	p99 := quantile(s.sorted, 0.99)
	for i := len(s.sorted) - 1; i > len(s.sorted)*99/100; i-- {
		v, below := float64(s.sorted[i]), float64(s.sorted[i-1])
		if below <= 0 || v < spikeOver99*p99 {
			break
		}
		if v > spikeJump*below {
			limit = min(limit, v)
		}
	}
	return limit
}

// findBeat looks for weeks in which every few steps a value is about 50 % higher than its
// neighbours. The cause is a logger whose interval does not divide the dataset's interval,
// so that some steps get an extra reading.
func (s *subject) findBeat() {
	block := beatDays * s.d.StepsPerDay()
	peaks, blocks := 0, 0     // totals of all periods that are long enough
	inRow, peaksInRow := 0, 0 // counts in the current period
	ratio, start := 0.0, 0
	for first := 0; ; first += block {
		n := 0
		if first+block <= len(s.load) {
			_, n = s.beats(first, first+block)
		}
		if n > 0 {
			inRow++
			peaksInRow += n
			continue
		}
		if inRow >= beatBlocks {
			peaks, blocks = peaks+peaksInRow, blocks+inRow
			start = first - inRow*block
			ratio, _ = s.beats(start, start+block)
		}
		inRow, peaksInRow = 0, 0
		if first+block > len(s.load) {
			break
		}
	}
	if blocks > 0 {
		s.find(codeBeat, Warning, peaks, blocks*block, []Where{{s.time(start), blocks * block, ratio}}, "For %s, one value in %s is about %s times its neighbours: some steps seem to include an extra reading.",
			s.duration(blocks*block), short(float64(blocks*block)/float64(peaks)), short(ratio))
	}
}

// beats returns the median ratio of the peaks between two steps to the peaks' neighbours, and
// the number of peaks. It returns 0 if there are few peaks or if the ratios differ.
func (s *subject) beats(from, to int) (float64, int) {
	present := 0
	var ratios, heights []float32
	for i := from + 1; i < to-1; i++ {
		if !s.ok(i-1) || !s.ok(i) || !s.ok(i+1) {
			continue
		}
		present++
		before, after := float64(s.load[i-1]), float64(s.load[i+1])
		if beside := (before + after) / 2; math.Abs(before-after) < beatEven*beside && float64(s.load[i]) > beatPeak*beside {
			ratios, heights = append(ratios, s.load[i]/float32(beside)), append(heights, float32(beside))
		}
	}
	if 2*present < to-from || float64(len(ratios)) < beatShare*float64(present) {
		return 0, 0
	}
	ratio, ok := evenRatio(ratios, heights)
	if !ok || ratio > beatMost {
		return 0, 0
	}
	return ratio, len(ratios)
}

// evenRatio returns the median of the ratios of peaks to their neighbours, and whether
// peaks above low neighbours have about the same ratio as peaks above high neighbours.
func evenRatio(ratios, heights []float32) (float64, bool) {
	middle := medianOf(slices.Clone(heights))
	var low, high []float32
	for i, r := range ratios {
		if float64(heights[i]) < middle {
			low = append(low, r)
		} else {
			high = append(high, r)
		}
	}
	slices.Sort(ratios)
	mid := quantile(ratios, 0.5)
	if len(low) == 0 || quantile(ratios, 0.75)-quantile(ratios, 0.25) > beatSpread*mid {
		return mid, false
	}
	return mid, math.Abs(medianOf(low)-medianOf(high)) < beatSpread/2*mid
}
