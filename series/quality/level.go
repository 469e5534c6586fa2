package quality

import (
	"math"
	"slices"
	"time"
)

// Thresholds of the search for jumps of the level.
const (
	// Four weeks on each side: whole weeks, and longer than a holiday. Up to so
	// many days may lie between and within them, for gaps.
	jumpDays, jumpGap = 28, 90
	// Doubling is the least that a wrong unit or transformer does, and may look a
	// little smaller. Where a season cannot be told from it by another year, it
	// must be more.
	jumpFactor, jumpAlone = 1.8, 3.0
	// A unit is at least doubled, whether there is another year or not.
	jumpUnit = 1.9
	// A unit of a thousand or a hundred, or a decimal point, is not a change of use.
	jumpProblem = 8.0
	// Three months later the new level must still be there, and a year before and
	// after it must not be: otherwise it is the season. This share of the jump.
	jumpLast = 0.5
	// A jump must be this many times as large as what the days on either side differ
	// by: homes are that unsteady, and a slow change spreads them.
	jumpNoise = 5
	// Seasons may come so many days earlier or later than a year before.
	jumpSeason = 45
	// A unit moves low and high values by the same factor, up to this share.
	jumpEven = 0.1
)

// dayLevel is the median of a day, as a logarithm.
type dayLevel struct {
	day   int // index into subject.days
	level float64
}

// jump is a change of level at the start of a day.
type jump struct {
	at   int // index into the day levels: the first day of the new level
	size float64
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
	report(codeUnitJump, units, "From %s on low and high values alike are %s times what they were; there %s.")
	report(codeLevelJump, jumps, "From %s on the level is %s times what it was, and stays so; there %s.")
}

// dayLevels returns the levels of the days of which enough is known.
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

// middle returns the median level of some days, and over how many days they
// stretch.
func middle(levels []dayLevel) (level float64, stretch int) {
	v := make([]float64, len(levels))
	for i, l := range levels {
		v[i] = l.level
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2, levels[len(levels)-1].day - levels[0].day + 1
}

// spread returns how far days usually are from a level: the median distance.
func spread(levels []dayLevel, level float64) float64 {
	v := make([]float64, len(levels))
	for i, l := range levels {
		v[i] = math.Abs(l.level - level)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// steepest returns the places where the level of four weeks differs most from that
// of the four weeks before, from one day to the next.
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
		// Among neighbours the one with the largest step from day to day counts.
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

// steep returns the step of the level at a day in the direction of the jump.
func steep(levels []dayLevel, at int, size float64) float64 {
	before, _ := middle(levels[at-3 : at])
	after, _ := middle(levels[at : at+3])
	return math.Copysign(1, size) * (after - before)
}

// lasting says whether a jump is neither soon undone nor the season's; alone, that
// there is no other year to tell the season by.
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
	// A year away, where it is known, what comes after the jump must be new, and
	// what was before it gone. Seasons do not come on the same day every year.
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

// around returns the median level between two days, by number.
func around(levels []dayLevel, days []localDay, from, to int) (float64, bool) {
	first, _ := slices.BinarySearchFunc(levels, from, func(l dayLevel, n int) int { return days[l.day].number - n })
	end, _ := slices.BinarySearchFunc(levels, to, func(l dayLevel, n int) int { return days[l.day].number - n })
	if end-first < jumpDays/2 {
		return 0, false
	}
	level, _ := middle(levels[first:end])
	return level, true
}

// evenly says whether low, middle and high values jump by the same factor.
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
