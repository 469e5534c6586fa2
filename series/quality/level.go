package quality

import (
	"math"
	"slices"
	"time"
)

// Thresholds for findings about jumps of the load's level.
const (
	// The level of the four weeks before a day is compared with the level of the four weeks
	// after it. Four weeks are whole weeks, and longer than a holiday. Because of gaps, each
	// side may span up to jumpGap days, and the two sides may be up to jumpGap days apart.
	jumpDays, jumpGap = 28, 90
	// A wrong unit or transformer ratio changes the values by a factor of at least 2. Noise can
	// make the factor look slightly smaller. If there is no other year to rule out the season as
	// the cause, the factor must be at least jumpAlone.
	jumpFactor, jumpAlone = 1.8, 3.0
	// A jump by at least this factor can be a unit jump, even if there is no other year for
	// comparison.
	jumpUnit = 1.9
	// A factor of 10, 100 or 1000 indicates a wrong unit or decimal point, not a change of use.
	jumpProblem = 8.0
	// More than this share of the jump must remain if the four weeks on one side are compared
	// with 16 weeks on the other side, or with the same season a year earlier or later.
	// Otherwise the jump did not last, or the season caused it.
	jumpLast = 0.5
	// A jump must be at least this many times as large as the spread of the daily levels before
	// and after it. The load of homes varies a lot from day to day, and a slow change increases
	// the spread.
	jumpNoise = 5
	// Seasons can start this many days earlier or later than in the year before.
	jumpSeason = 45
	// A unit jump changes low and high values by the same factor, within this tolerance.
	jumpEven = 0.1
)

// dayLevel is the level of one day: the logarithm of its median reading.
type dayLevel struct {
	day   int // index into subject.days
	level float64
}

// jump is a change of level at the start of a day.
type jump struct {
	at   int     // index into the day levels: the first day of the new level
	size float64 // the level after the jump minus the level before it
}

// findJumps looks for lasting changes of the level from one day to the next.
func (s *subject) findJumps() {
	levels := s.dayLevels()
	var jumps, units []jump
	for _, j := range steepest(levels) {
		lasts, alone := lasting(levels, j, s.days)
		if !lasts {
			continue
		}
		if f, ok := s.evenly(levels, j); ok && math.Abs(math.Log(f)) > math.Log(jumpUnit) {
			units = append(units, jump{j.at, math.Log(f)})
		} else if !alone || math.Abs(j.size) > math.Log(jumpAlone) {
			jumps = append(jumps, j)
		}
	}
	report := func(code Code, list []jump, message string) {
		if len(list) == 0 {
			return
		}
		severity := Warning
		var top topPlaces
		most := list[0]
		for _, j := range list {
			top.add(Where{Time: s.time(s.days[levels[j.at].day].first), Size: math.Exp(j.size)}, math.Abs(j.size))
			if math.Abs(j.size) > math.Abs(most.size) {
				most = j
			}
		}
		if math.Abs(most.size) > math.Log(jumpProblem) {
			severity = Problem
		}
		s.find(code, severity, len(list), 0, top.inOrder(), message, s.time(s.days[levels[most.at].day].first).Format(time.DateOnly), short(math.Exp(most.size)), isAre(len(list), "such jump"))
	}
	report(codeUnitJump, units, "From %s on, low and high values are %s times as large as before; there %s.")
	report(codeLevelJump, jumps, "From %s on, the level is permanently %s times the previous level; there %s.")
}

// dayLevels returns the levels of the days on which at least three quarters of the readings
// are usable and the median is positive.
func (s *subject) dayLevels() []dayLevel {
	var levels []dayLevel
	for k, d := range s.days {
		s.buf = s.buf[:0]
		for i := d.first; i < d.end; i++ {
			if s.ok(i) {
				s.buf = append(s.buf, s.load[i])
			}
		}
		if 4*len(s.buf) < 3*s.d.StepsPerDay() {
			continue
		}
		if m := medianOf(s.buf); m > 0 {
			levels = append(levels, dayLevel{k, math.Log(m)})
		}
	}
	return levels
}

// middle returns the median of the given levels, and the number of calendar days from the
// first to the last of them.
func middle(levels []dayLevel) (level float64, stretch int) {
	v := make([]float64, len(levels))
	for i, l := range levels {
		v[i] = l.level
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2, levels[len(levels)-1].day - levels[0].day + 1
}

// spread returns the median absolute difference between the given levels and one level.
func spread(levels []dayLevel, level float64) float64 {
	v := make([]float64, len(levels))
	for i, l := range levels {
		v[i] = math.Abs(l.level - level)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// steepest returns the candidate jumps: the days on which the level of the following four weeks
// differs most from that of the preceding four weeks.
func steepest(levels []dayLevel) []jump {
	var found []jump
	for at := jumpDays; at+jumpDays <= len(levels); at++ {
		before, a := middle(levels[at-jumpDays : at])
		after, b := middle(levels[at : at+jumpDays])
		size := after - before
		if math.Abs(size) < math.Log(jumpFactor) || max(a, b) > jumpGap || levels[at].day-levels[at-1].day > jumpGap {
			continue
		}
		if math.Abs(size) < jumpNoise*max(spread(levels[at-jumpDays:at], before), spread(levels[at:at+jumpDays], after)) {
			continue
		}
		// Of candidates less than jumpDays apart, keep the candidate at which the level changes
		// most within a few days.
		if n := len(found); n > 0 && at-found[n-1].at < jumpDays {
			if steep(levels, at, size) > steep(levels, found[n-1].at, found[n-1].size) {
				found[n-1] = jump{at, size}
			}
			continue
		}
		found = append(found, jump{at, size})
	}
	return found
}

// steep returns the difference between the levels of the three days from at on and of the three
// days before. The result is positive if the change has the same sign as size.
func steep(levels []dayLevel, at int, size float64) float64 {
	before, _ := middle(levels[at-3 : at])
	after, _ := middle(levels[at : at+3])
	return math.Copysign(1, size) * (after - before)
}

// lasting reports whether a jump is neither reverted within months nor caused by the season.
// Alone means that the series has no other year in which the season can be compared.
func lasting(levels []dayLevel, j jump, days []localDay) (lasts, alone bool) {
	before, _ := middle(levels[j.at-jumpDays : j.at])
	after, _ := middle(levels[j.at : j.at+jumpDays])
	keeps := func(level, from float64) bool {
		return (level-from)/j.size > jumpLast
	}
	later, _ := middle(levels[j.at:min(len(levels), j.at+4*jumpDays)])
	earlier, _ := middle(levels[max(0, j.at-4*jumpDays):j.at])
	if !keeps(later, before) || !keeps(after, earlier) {
		return false, false
	}
	// The new level must not occur a year before the jump, and the old level must not occur a
	// year after it. Check several offsets, because seasons do not start on the same day every
	// year.
	at := days[levels[j.at].day].number
	alone = true
	for off := -jumpSeason; off <= jumpSeason; off += jumpSeason / 3 {
		if old, ok := around(levels, days, at-yearDays+off, at-yearDays+off+jumpDays); ok {
			if !keeps(after, old) {
				return false, false
			}
			alone = false
		}
		if next, ok := around(levels, days, at+yearDays+off-jumpDays, at+yearDays+off); ok {
			if !keeps(next, before) {
				return false, false
			}
			alone = false
		}
	}
	return true, alone
}

// around returns the median level of the days between two day numbers. It returns false if
// too few of these days have a level.
func around(levels []dayLevel, days []localDay, from, to int) (float64, bool) {
	first, _ := slices.BinarySearchFunc(levels, from, func(l dayLevel, n int) int { return days[l.day].number - n })
	end, _ := slices.BinarySearchFunc(levels, to, func(l dayLevel, n int) int { return days[l.day].number - n })
	if end-first < jumpDays/2 {
		return 0, false
	}
	level, _ := middle(levels[first:end])
	return level, true
}

// evenly returns the factor by which the median reading changes at a jump, and whether low
// and high readings change by about the same factor.
func (s *subject) evenly(levels []dayLevel, j jump) (factor float64, ok bool) {
	of := func(part []dayLevel) [3]float64 {
		s.buf = s.buf[:0]
		for _, l := range part {
			for i := s.days[l.day].first; i < s.days[l.day].end; i++ {
				if s.ok(i) {
					s.buf = append(s.buf, s.load[i])
				}
			}
		}
		slices.Sort(s.buf)
		return [3]float64{quantile(s.buf, 0.1), quantile(s.buf, 0.5), quantile(s.buf, 0.9)}
	}
	before, after := of(levels[j.at-jumpDays:j.at]), of(levels[j.at:j.at+jumpDays])
	factor = after[1] / before[1]
	for k := range before {
		if !(before[k] > 0) || math.Abs(after[k]/before[k]/factor-1) > jumpEven {
			return 0, false
		}
	}
	return factor, true
}
