package issue

import (
	"math"
	"slices"
)

const (
	// medianDays is the number of days over which medians are taken. leastMedianDays is the
	// minimum number of these days that must be known.
	medianDays      = 28
	leastMedianDays = 14
	judgedDays      = 14
	// medianGain is the maximum error of medians, relative to the error of last week's load, at
	// which medians are chosen. Without this margin, the choice could change every day.
	medianGain = 0.95
)

// medians computes the median of the loads at the same clock time for each step of the next 24
// hours, and determines whether the median or last week's load was the better forecast in the
// last two weeks. In homes, peaks are irregular, and last week's load repeats them at the wrong
// time. In buildings, workdays differ from weekends, and a median mixes them.
func (s *State) medians() {
	w := &s.work
	w.medians = resized(w.medians, s.perDay)
	var loads [medianDays]float64 // newest first
	var ofMedian, ofWeek float64
	for i := range w.medians {
		known := w.sorted[:0]
		for d := medianDays - 1; d >= 0; d-- {
			v := w.at(s.back(w.last+1+i, d+1))
			if loads[d] = v; math.IsNaN(v) {
				continue
			}
			if d < judgedDays && len(known) >= leastMedianDays/2 && !math.IsNaN(loads[d+7]) {
				ofMedian += math.Abs(v - middle(known))
				ofWeek += math.Abs(v - loads[d+7])
			}
			at, _ := slices.BinarySearch(known, v)
			known = slices.Insert(known, at, v)
		}
		if w.medians[i] = math.NaN(); len(known) >= leastMedianDays {
			w.medians[i] = middle(known)
		}
		w.sorted = known
	}
	w.byMedian = ofMedian < float64(medianGain*ofWeek)
}

// middle returns the median of sorted numbers.
func middle(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// medianAt returns the median that forecasts a target, or NaN if too few loads are known.
func (s *State) medianAt(target int) float64 {
	first := s.work.last + 1
	for target-first >= s.perDay {
		target = s.back(target, 1)
	}
	return s.work.medians[max(target-first, 0)]
}
