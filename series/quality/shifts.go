package quality

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Thresholds for clock shifts and for unusual values at fixed points of the calendar.
const (
	// A day is examined by comparing the mean daily profile of the three weeks before it with
	// the mean daily profile of the three weeks after it. Whole weeks give weekends the same
	// weight on both sides.
	shiftDays = 21
	// Wrong clocks are off by a few hours, not by half a day.
	shiftHours = 3
	// At a daylight-saving change, a shift needs to explain only half of the difference
	// between two similar profiles, provided that most changes show a shift.
	shiftLawAlike, shiftLawLeft, shiftLawMost = 0.9, 0.5, 0.6
	// On other days a shift must explain nearly all of the difference, because people
	// also change their habits.
	shiftAlike, shiftLeft = 0.98, 0.1
	// The rises and falls of the profile are noisier than the profile itself, so a larger share
	// of their difference may remain unexplained.
	shiftEdgesLeft = 0.3
	// A shift that increases the correlation by less than this is noise.
	shiftGain = 0.005
	// The detected day of a shift can be off by this many days.
	shiftNear = 8
	// A step is odd if its ratio to its neighbours is below oddLow or above oddHigh. A finding
	// requires odd steps at a share of at least oddMost of the places, and on a share of at most
	// oddOther of the other days at the same time of day.
	oddLow, oddHigh, oddMost, oddOther = 0.75, 1.4, 0.6, 0.1
)

// profile is the sum of the daily profiles of several days, by slot of the day.
type profile struct {
	sum   []float64
	count []int
}

func newProfile(slots int) profile { return profile{make([]float64, slots), make([]int, slots)} }

// add adds a day to the profile, or removes it if the sign is -1. It skips incomplete days
// and days on which clocks change.
func (p *profile) add(s *subject, day, sign int, low, high float64) {
	d := s.days[day]
	if !d.whole {
		return
	}
	for i := d.first; i < d.end; i++ {
		if s.ok(i) {
			p.sum[i-d.first] += float64(sign) * min(max(float64(s.load[i]), low), high)
			p.count[i-d.first] += sign
		}
	}
}

// mean writes the mean daily profile to out. It returns false if a slot has too few
// readings.
func (p *profile) mean(out []float64) bool {
	for i := range out {
		if 2*p.count[i] < shiftDays {
			return false
		}
		out[i] = p.sum[i] / float64(p.count[i])
	}
	return true
}

// standardise scales values to mean 0 and length 1, so that the dot product of two
// vectors is their correlation. It returns false if all values are equal.
func standardise(v []float64) bool {
	mean := 0.0
	for _, x := range v {
		mean += x / float64(len(v))
	}
	length := 0.0
	for i := range v {
		v[i] -= mean
		length += v[i] * v[i]
	}
	if length = math.Sqrt(length); !(length > 1e-9*math.Abs(mean)) {
		return false
	}
	for i := range v {
		v[i] /= length
	}
	return true
}

// shift is a change of the daily profile's timing from one day to the next.
type shift struct {
	day   int     // index into subject.days: the first day of the new profile
	steps int     // the delay of the load; negative if it comes earlier
	still float64 // correlation of the profiles before and after, unshifted
	moved float64 // correlation after shifting one of the profiles
}

// left returns the share of the difference between the two profiles that the shift does not
// explain. It must not be called if steps is 0.
func (x shift) left() float64 { return (1 - x.moved) / (1 - x.still) }

// findShifts compares, for every day, the mean profiles of the weeks before and after the
// day. It records the shift that aligns the two profiles best.
func (s *subject) findShifts() {
	slots := s.d.StepsPerDay()
	reach := shiftHours * slots / 24
	if reach == 0 || len(s.days) < 2*shiftDays {
		return
	}
	low, high := quantile(s.sorted, 0.01), quantile(s.sorted, 0.99)
	before, after := newProfile(slots), newProfile(slots)
	for i := range shiftDays {
		before.add(s, i, 1, low, high)
		after.add(s, shiftDays+i, 1, low, high)
	}
	a, b := make([]float64, slots), make([]float64, slots)
	for day := shiftDays; ; day++ {
		if before.mean(a) && after.mean(b) && standardise(a) && standardise(b) {
			x := shift{day: day, still: correlation(a, b, 0)}
			x.moved = x.still
			for k := -reach; k <= reach; k++ {
				if c := correlation(a, b, k); c > x.moved {
					x.steps, x.moved = k, c
				}
			}
			if x.moved < x.still+shiftGain {
				x.steps, x.moved = 0, x.still
			}
			s.shifts = append(s.shifts, x)
		}
		if day+shiftDays == len(s.days) {
			return
		}
		before.add(s, day-shiftDays, -1, low, high)
		before.add(s, day, 1, low, high)
		after.add(s, day, -1, low, high)
		after.add(s, day+shiftDays, 1, low, high)
	}
}

// shiftAt returns the shift on the day of a daylight-saving change.
func (s *subject) shiftAt(c clockChange) (x shift, day int, ok bool) {
	day, _ = slices.BinarySearchFunc(s.days, c.unix, func(d localDay, t int64) int {
		return cmp.Compare(s.start+int64(d.end)*s.d.Seconds(), t+1)
	})
	k, ok := slices.BinarySearchFunc(s.shifts, day, func(x shift, day int) int { return x.day - day })
	if !ok {
		return shift{}, day, false
	}
	return s.shifts[k], day, true
}

// correlation returns the correlation of a with b shifted earlier by the given number of
// slots. Both must be standardised.
func correlation(a, b []float64, later int) float64 {
	n := len(a)
	later = (later%n + n) % n
	sum := 0.0
	for i, y := range b[later:] {
		sum += a[i] * y
	}
	for i, y := range b[:later] {
		sum += a[n-later+i] * y
	}
	return sum
}

// findClockShifts looks for days on which the daily profile shifts by hours. Shifts at
// daylight-saving changes show that the load does not follow the dataset's clock. Shifts
// on other days show that a clock was adjusted.
func (s *subject) findClockShifts(zone *time.Location) {
	s.findShifts()
	law, other, rule := s.sortShifts(zone)
	s.moves = append(s.moves, other...)
	if len(law) > 0 {
		var where topPlaces
		spring, autumn, against := 0.0, 0.0, 0
		for _, x := range law {
			hours := s.inHours(x.shift.steps)
			where.add(s.shiftPlace(x.shift), 1-x.shift.left())
			if x.change.hours > 0 {
				spring = hours
			} else {
				autumn = hours
			}
			if hours*x.change.hours < 0 {
				against++
			}
		}
		s.find(codeClockShift, Info, len(law), 0, where.inOrder(), "The daily profile shifts at the daylight-saving changes of %s: the load comes %s in spring, %s in autumn. %s",
			rule, earlierLater(spring), earlierLater(autumn), whyShift(2*against > len(law)))
	}
	if len(other) > 0 {
		var where topPlaces
		clearest := other[0]
		for _, x := range other {
			where.add(s.shiftPlace(x), 1-x.left())
			if x.left() < clearest.left() {
				clearest = x
			}
		}
		s.find(codeClockShift, Warning, len(other), 0, where.inOrder(), "From %s on, the daily profile comes %s, although there is no daylight-saving change; there %s.",
			s.time(s.days[clearest.day].first).Format(time.DateOnly), earlierLater(s.inHours(clearest.steps)), isAre(len(other), "such shift"))
	}
}

// whyShift explains a shift at daylight-saving changes. Against means that the load
// comes earlier when clocks are put forward.
func whyShift(against bool) string {
	if against {
		return "The labels do not follow daylight saving, but the load does."
	}
	return "The labels follow daylight saving, but the load does not; outdoor lighting is an example."
}

func (s *subject) inHours(steps int) float64 { return float64(steps) * s.d.Interval.Hours() }

func (s *subject) shiftPlace(x shift) Where {
	return Where{Time: s.time(s.days[x.day].first), Size: s.inHours(x.steps)}
}

func earlierLater(hours float64) string {
	switch {
	case hours < 0:
		return short(-hours) + " h earlier"
	case hours > 0:
		return short(hours) + " h later"
	}
	return "at the same time"
}

// lawShift is a shift at a daylight-saving change.
type lawShift struct {
	shift  shift
	change clockChange
}

// sortShifts divides the shifts into those at daylight-saving changes and all others. If
// the zone is unknown, it tries the rules of Europe, North America and Australia, and
// returns the rule that fits best.
func (s *subject) sortShifts(zone *time.Location) (law []lawShift, other []shift, rule string) {
	from, to := s.start, s.start+int64(len(s.load))*s.d.Seconds()
	unsorted := s.clearShifts()
	other = unsorted
	for _, z := range changingZones(zone, from) {
		if l, o := s.shiftsAt(unsorted, clockChanges(z, from, to)); len(l) > len(law) {
			law, other, rule = l, o, z.String()
		}
	}
	return law, other, rule
}

// shiftsAt returns two lists. law contains the clear shifts at the given daylight-saving
// changes and, if most changes show a shift, the less clear ones. other contains the clear
// shifts on other days.
func (s *subject) shiftsAt(unsorted []shift, changes []clockChange) (law []lawShift, other []shift) {
	seen := 0
	near := make([]bool, len(unsorted))
	var faint []lawShift
	for _, c := range changes {
		at, day, known := s.shiftAt(c)
		isClear := false
		for i, x := range unsorted {
			if max(x.day-day, day-x.day) <= shiftNear && s.fits(x, c) {
				near[i], isClear = true, true
				law = append(law, lawShift{x, c})
			}
		}
		if !known {
			continue
		}
		seen++
		if !isClear && at.moved >= shiftLawAlike && at.left() <= shiftLawLeft && s.fits(at, c) && s.edgesMove(at, shiftLawLeft) {
			faint = append(faint, lawShift{at, c})
		}
	}
	if n := len(law) + len(faint); n >= 2 && float64(n) >= shiftLawMost*float64(seen) {
		law = append(law, faint...)
	}
	for i, x := range unsorted {
		if !near[i] {
			other = append(other, x)
		}
	}
	return law, other
}

// fits reports whether a shift has the size of a daylight-saving change. The load comes
// earlier when clocks are put forward if only the load follows daylight saving, and later
// if only the labels do.
func (s *subject) fits(x shift, c clockChange) bool {
	return x.steps != 0 && math.Abs(s.inHours(x.steps)) == math.Abs(c.hours)
}

// clearShifts returns the unambiguous shifts, which are at least shiftDays apart.
func (s *subject) clearShifts() []shift {
	var found []shift
	for _, x := range s.shifts {
		if x.steps == 0 || x.moved < shiftAlike || x.left() > shiftLeft || x.steps%s.hours(1) != 0 {
			continue
		}
		// If the profile also shifts three weeks earlier or later, the season causes the
		// shift.
		if s.steadyAt(x.day-shiftDays) && s.steadyAt(x.day+shiftDays) && s.edgesMove(x, shiftEdgesLeft) {
			if n := len(found); n == 0 || x.day-found[n-1].day >= shiftDays {
				found = append(found, x)
			} else if x.left() < found[n-1].left() {
				found[n-1] = x
			}
		}
	}
	return found
}

// steadyAt reports whether the profile does not shift on a day. It also returns true if this is
// unknown.
func (s *subject) steadyAt(day int) bool {
	k, ok := slices.BinarySearchFunc(s.shifts, day, func(x shift, day int) int { return x.day - day })
	return !ok || s.shifts[k].steps == 0
}

// edgesMove reports whether the rises and falls of the load shift by as much as the
// profile, so that at most the given share of their difference remains unexplained. The
// smooth curve of a cooling load can shift while the rises and falls do not.
func (s *subject) edgesMove(x shift, most float64) bool {
	low, high := quantile(s.sorted, 0.01), quantile(s.sorted, 0.99)
	n := s.d.StepsPerDay()
	var edges [2][]float64
	for side := range edges {
		p := newProfile(n)
		for i := range shiftDays {
			p.add(s, x.day+side*shiftDays-1-i, 1, low, high)
		}
		day := make([]float64, n)
		if !p.mean(day) {
			return false
		}
		edges[side] = make([]float64, n)
		for i := range day {
			edges[side][i] = day[(i+1)%n] - day[i]
		}
		if !standardise(edges[side]) {
			return false
		}
	}
	x.still, x.moved = correlation(edges[0], edges[1], 0), correlation(edges[0], edges[1], x.steps)
	return x.left() < most
}
