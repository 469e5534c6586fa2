package quality

import (
	"math"
	"slices"
	"time"

	"loadstar/series"
)

// findCalendar looks for unusual values at fixed points of the calendar: the first step
// of a year or month, and the hours that daylight saving skips or repeats.
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
		return // a clock with daylight saving has no step for the skipped hour
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
	// The hour that legal clocks skip or repeat begins with the clock change. If labels
	// mark the end of their interval, the unusual value appears an hour later.
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
			next.report(s, codeClockChange, x.what+" has a value, labelled by the interval's end, which")
		} else {
			first.report(s, codeClockChange, x.what+" has a value, which")
		}
	}
}

// oddSteps contains steps at fixed points of the calendar whose values are all too low or
// all too high.
type oddSteps struct {
	low    bool
	known  int // places with enough readings to judge
	steps  []int
	ratios []float32 // the value of each step divided by the mean of its neighbours
}

// oddAt examines the steps that are the given number of steps after each place. It returns the
// steps whose values are far below (low) or far above the values of their neighbours. The
// result is empty unless such values occur at most places, but rarely at the same time on other
// days.
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

// strength returns the absolute logarithm of the median ratio, or 0 if there are no steps.
func (o oddSteps) strength() float64 {
	if len(o.steps) == 0 {
		return 0
	}
	return math.Abs(math.Log(max(medianOf(slices.Clone(o.ratios)), 1e-6)))
}

// report adds a finding to s if there are odd steps. The severity is Info because a few steps
// do not harm training. If many meters have this finding, the fleet report contains a warning.
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

// besideNeighbours returns the value of step i divided by the mean of the previous and the next
// value. If one of these values is missing, it uses only the other one.
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
