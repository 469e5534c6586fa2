package quality

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"loadstar/series"
)

// Thresholds of the searches around the clock and the calendar.
const (
	// Profiles are means over three weeks on each side: whole weeks, so that
	// weekends weigh the same.
	shiftDays = 21
	// Clocks are wrong by hours, not by half a day.
	shiftHours = 3
	// Where clocks change by law, a shift that explains half of the difference
	// between two profiles that are otherwise alike is enough, if most changes
	// show it.
	shiftLawAlike, shiftLawLeft, shiftLawMost = 0.9, 0.5, 0.6
	// Anywhere else a shift must explain nearly all: people move their days too.
	shiftAlike, shiftLeft = 0.98, 0.1
	// So must it for the rises and falls of the day, which are noisier.
	shiftEdgesLeft = 0.3
	// A correlation that grows by less than this is not a shift but noise.
	shiftGain = 0.005
	// The best day for a shift is found up to this many days off.
	shiftNear = 8
	// A step is odd if it is below or above this share of its neighbours; most
	// places of a kind must be, and hardly any other day at that time.
	oddLow, oddHigh, oddMost, oddOther = 0.75, 1.4, 0.6, 0.1
)

// legalZone returns the zone whose daylight saving the meters' owners live by: the
// clock itself, or the zone that a clock without it is named after; nil if that is
// not known.
func legalZone(clock *time.Location) *time.Location {
	name, standard := strings.CutSuffix(clock.String(), " standard time") // as StandardTime names it
	if !standard {
		return clock
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil // no zones on this machine: one check less
	}
	return zone
}

// clockChange is a change of legal time.
type clockChange struct {
	unix  int64
	hours float64 // by which clocks are put forward
}

// clockChanges returns when a zone's clocks change within a span.
func clockChanges(zone *time.Location, from, to int64) []clockChange {
	var found []clockChange
	for t := time.Unix(from, 0).In(zone); ; {
		_, end := t.ZoneBounds()
		if end.IsZero() || end.Unix() >= to {
			return found
		}
		_, before := t.Zone()
		_, after := end.Zone()
		if after != before {
			found = append(found, clockChange{end.Unix(), float64(after-before) / 3600})
		}
		t = end
	}
}

// changingZones returns the zone if its clocks change. If it is UTC, or not known,
// it returns how clocks change in Europe, North America and Australia, as far as
// this machine knows: people do not live by UTC.
func changingZones(zone *time.Location, from int64) []*time.Location {
	const overAYear = 400 * 24 * 60 * 60
	if zone != nil {
		if len(clockChanges(zone, from, from+overAYear)) > 0 {
			return []*time.Location{zone}
		}
		if name := zone.String(); name != "UTC" && !strings.HasPrefix(name, "Etc/") {
			return nil
		}
	}
	var zones []*time.Location
	for _, name := range []string{"Europe/London", "America/New_York", "Australia/Sydney"} {
		if z, err := time.LoadLocation(name); err == nil {
			zones = append(zones, z)
		}
	}
	return zones
}

// profile is the sum of daily profiles, by slot.
type profile struct {
	sum   []float64
	count []int
}

func newProfile(slots int) profile { return profile{make([]float64, slots), make([]int, slots)} }

// add adds a day, or takes it away if the sign is -1. Days without all their steps,
// and the days on which clocks change, are left out.
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

// mean writes the mean day, and says whether enough is known of every slot.
func (p *profile) mean(out []float64) bool {
	for i := range out {
		if 2*p.count[i] < shiftDays {
			return false
		}
		out[i] = p.sum[i] / float64(p.count[i])
	}
	return true
}

// standardise moves values to mean 0 and stretches them to length 1, so that their
// product is a correlation. It says whether they are not all the same.
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

// shift is a move of the daily profile from one day to the next.
type shift struct {
	day   int     // index into subject.days: the first of the new profile
	steps int     // by which the load comes later; negative if earlier
	still float64 // correlation of the profiles as they are
	moved float64 // and after moving one of them
}

// left is the share of the difference that the move does not explain. There must be
// a move.
func (x shift) left() float64 { return (1 - x.moved) / (1 - x.still) }

// findShifts compares the mean profile of the weeks before and after every day, and
// notes how far the second must be moved to fit the first.
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

// shiftAt returns the shift on the day of a change of legal time.
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

// correlation returns that of a profile with another that comes so many slots
// later, both with mean 0 and length 1.
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

// findClockShifts looks for days on which the daily profile moves by hours: when
// clocks change by law, which says that people live by another clock than the
// dataset's; and on any other day, which says that a clock was set.
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
		s.find(codeClockShift, Info, len(law), 0, where.inOrder(), "The day moves when clocks change as in %s: the load comes %s in spring, %s in autumn. %s",
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
		s.find(codeClockShift, Warning, len(other), 0, where.inOrder(), "From %s on the load of the whole day comes %s, at a time when clocks do not change; there %s.",
			s.time(s.days[clearest.day].first).Format(time.DateOnly), earlierLater(s.inHours(clearest.steps)), isAre(len(other), "such day"))
	}
}

// whyShift says what it means that the day moves when clocks change.
func whyShift(against bool) string {
	if against {
		return "The labels run on through the year while people change their clocks."
	}
	return "The load does not follow legal time, as lighting that follows the sun does not."
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

// lawShift is a shift at a change of legal time.
type lawShift struct {
	shift  shift
	change clockChange
}

// sortShifts divides the shifts into those at changes of legal time and others.
// Without a zone that has such changes it tries how clocks change in Europe, North
// America and Australia, and names the one that fits best.
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

// shiftsAt returns the shifts at given changes of legal time: those that are clear,
// and the less clear ones too if most changes show one. The rest of the clear ones
// is the other.
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

// fits says whether a shift is as large as a change of legal time. The load moves
// against the clock's hand where labels run on while people follow the law, and
// with it where labels follow the law and the load the sun.
func (s *subject) fits(x shift, c clockChange) bool {
	return x.steps != 0 && math.Abs(s.inHours(x.steps)) == math.Abs(c.hours)
}

// clearShifts returns the shifts that are beyond doubt, one per neighbourhood.
func (s *subject) clearShifts() []shift {
	var found []shift
	for _, x := range s.shifts {
		if x.steps == 0 || x.moved < shiftAlike || x.left() > shiftLeft || x.steps%s.hours(1) != 0 {
			continue
		}
		// What goes on moving for weeks before or after is the season.
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

// steadyAt says that the profile does not move on a day, as far as is known.
func (s *subject) steadyAt(day int) bool {
	k, ok := slices.BinarySearchFunc(s.shifts, day, func(x shift, day int) int { return x.day - day })
	return !ok || s.shifts[k].steps == 0
}

// edgesMove says whether the rises and falls of the day move as the day does, with
// at most a share of their difference left. The smooth arc of a cooling load may come
// later without them.
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

// findCalendar looks for steps that are odd at regular places of the calendar.
func (s *subject) findCalendar(zone *time.Location) {
	var years, months []int
	for _, d := range s.days {
		if d.slot != 0 {
			continue
		}
		if t := s.time(d.first); t.Day() == 1 && t.Month() == time.January {
			years = append(years, d.first)
		} else if t.Day() == 1 {
			months = append(months, d.first)
		}
	}
	for _, low := range []bool{true, false} {
		s.oddAt(years, 0, low).report(s, codeYearStart, "The first step of the year")
		s.oddAt(months, 0, low).report(s, codeMonthStart, "The first step of the month")
	}
	if zone == nil || zone == s.d.Clock {
		return // with daylight saving on the clock, the odd hour is none of the steps
	}
	from, to := s.start, s.start+int64(len(s.load))*s.d.Seconds()
	var spring, autumn []int
	for _, c := range clockChanges(zone, from, to) {
		i := int((c.unix - s.start) / s.d.Seconds())
		if c.hours > 0 {
			spring = append(spring, i)
		} else {
			autumn = append(autumn, i)
		}
	}
	// The hour that legal clocks skip or repeat begins with the change; where
	// labels are the end of their interval, it is the one after.
	hour := s.hours(1)
	for _, x := range []struct {
		places []int
		low    bool
		what   string
	}{
		{spring, true, "The hour that legal clocks skip in spring"},
		{autumn, false, "The hour that legal clocks repeat in autumn"},
	} {
		first, next := s.oddAt(x.places, 0, x.low), s.oddAt(x.places, hour, x.low)
		if next.strength() > first.strength() {
			next.report(s, codeClockChange, x.what+" is there, labelled by its end, and")
		} else {
			first.report(s, codeClockChange, x.what+" is there, and")
		}
	}
}

// oddSteps are steps at places of the calendar that are all too low or too high.
type oddSteps struct {
	low    bool
	known  int // places that could be judged
	steps  []int
	ratios []float32 // to their neighbours
}

// oddAt looks at the given steps, moved by so many. It finds nothing unless most of
// them are far below, or far above, their neighbours, while steps at that time of
// day usually are not.
func (s *subject) oddAt(places []int, moved int, low bool) oddSteps {
	o := oddSteps{low: low}
	isOdd := func(r float64) bool { return low && r < oddLow || !low && r > oddHigh }
	for _, i := range places {
		if r, ok := s.besideNeighbours(i + moved); ok {
			o.known++
			if isOdd(r) {
				o.steps, o.ratios = append(o.steps, i+moved), append(o.ratios, float32(r))
			}
		}
	}
	if len(o.steps) < 2 || float64(len(o.steps)) < oddMost*float64(o.known) {
		return oddSteps{}
	}
	perDay := s.d.StepsPerDay()
	others, alike := 0, 0
	for i := o.steps[0] % perDay; i < len(s.load); i += perDay {
		if r, ok := s.besideNeighbours(i); ok && !slices.Contains(o.steps, i) {
			others++
			if isOdd(r) {
				alike++
			}
		}
	}
	if float64(alike) > oddOther*float64(others) {
		return oddSteps{}
	}
	return o
}

// strength says how far from their neighbours the steps are; 0 if there are none.
func (o oddSteps) strength() float64 {
	if len(o.steps) == 0 {
		return 0
	}
	return math.Abs(math.Log(max(medianOf(slices.Clone(o.ratios)), 1e-6)))
}

// report adds the finding, if there is one. A few steps spoil no training; what
// many meters share is the fleet's.
func (o oddSteps) report(s *subject, code Code, what string) {
	if len(o.steps) == 0 {
		return
	}
	word := "high"
	if o.low {
		word = "low"
	}
	var where topPlaces
	for k, i := range o.steps {
		r := float64(o.ratios[k])
		where.add(Where{s.time(i), 1, r}, math.Abs(math.Log(max(r, 1e-6))))
	}
	s.find(code, Info, len(o.steps), len(o.steps), where.inOrder(), "%s is too %s in %d of %d cases: about %s times its neighbours.",
		what, word, len(o.steps), o.known, short(medianOf(slices.Clone(o.ratios))))
}

// besideNeighbours returns a value divided by the mean of those before and after
// it, or of the one that there is.
func (s *subject) besideNeighbours(i int) (float64, bool) {
	if i < 0 || i >= len(s.load) || series.Missing(s.load[i]) {
		return 0, false
	}
	sum, n := 0.0, 0
	for _, k := range []int{i - 1, i + 1} {
		if k >= 0 && k < len(s.load) && !series.Missing(s.load[k]) {
			sum += float64(s.load[k])
			n++
		}
	}
	if sum <= 0 {
		return 0, false
	}
	return float64(s.load[i]) * float64(n) / sum, true
}
