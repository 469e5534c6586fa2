package issue

import (
	"math"
	"slices"

	"loadstar/series"
)

// past contains the readings that a forecast at a cutoff may use.
type past struct {
	*grid
	load  []float32 // load of at most the last reachDays days before the cutoff
	first int       // the step of load[0]
	last  int       // the newest step before the cutoff
	// oldest and newest are the first and the last step with a load. If there is no load, oldest
	// is greater than newest.
	oldest, newest int
	errors         map[int][]float64 // sorted errors of repeating a day, by the number of days
}

// read reads the readings of a meter up to a cutoff.
func (p *past) read(g *grid, m series.Meter, cutoff int64) {
	p.grid = g
	first := p.step(m.Start)
	p.last = p.step(cutoff) - 1
	from, to := max(first, p.last+1-reachDays*p.perDay), min(p.last+1, first+len(m.Load))
	p.load, p.first = nil, from
	if from < to {
		p.load = m.Load[from-first : to-first]
	}
	p.oldest, p.newest = 0, -1
	for i, v := range p.load {
		if !series.Missing(v) {
			p.oldest = from + i
			break
		}
	}
	for i, v := range slices.Backward(p.load) {
		if !series.Missing(v) {
			p.newest = from + i
			break
		}
	}
	clear(p.errors)
}

// at returns the load at a step, or NaN if it is not known.
func (p *past) at(step int) float64 {
	if step < p.first || step >= p.first+len(p.load) {
		return math.NaN()
	}
	v := float64(p.load[step-p.first])
	if math.IsInf(v, 0) {
		return math.NaN()
	}
	return v
}

// newestDay returns the newest step before the cutoff that has the same clock time as a target,
// and its distance from the target in days, which is a multiple of the given number.
func (p *past) newestDay(target, days int) (step, back int) {
	for back = days; ; back += days {
		if step = p.back(target, back); step <= p.last {
			return step, back
		}
	}
}

// highest returns the highest load in the 24 hours starting at a step, or NaN if a reading
// is missing.
func (p *past) highest(from int) float64 {
	top := math.Inf(-1)
	for step := from; step < from+p.perDay; step++ {
		top = max(top, p.at(step)) // NaN remains NaN
	}
	return top
}

// measured returns the energy, in kWh, that was measured from one time to another, or NaN if a
// reading is missing.
func (p *past) measured(from, to int64) float64 {
	sum := 0.0
	for t := p.stepAfter(from); t < to; t += p.seconds {
		sum += p.at(p.step(t))
	}
	return sum * p.interval.Hours()
}

// extremeDay returns the number of the local day with the highest load of the last 28 days, or
// 0 if there is no load.
func (p *past) extremeDay() int {
	at := -1
	for i, v := range p.load {
		if p.first+i > p.last-28*p.perDay && !series.Missing(v) && (at < 0 || v > p.load[at]) {
			at = i
		}
	}
	if at < 0 {
		return 0
	}
	return p.clock.day(p.start(p.first + at))
}

// flat reports whether the meter's reading has not changed for a day. All loads of the last 24
// hours must be equal, and this run of equal loads must be at least twice as long as any
// earlier run. A meter that often repeats values is not flat.
func (p *past) flat() bool {
	run, longest, n := 0, 0, 0 // n is the length of a run before the newest one
	newest := float32(math.NaN())
	before := newest
	for _, v := range slices.Backward(p.load) {
		switch {
		case series.Missing(v):
		case series.Missing(newest):
			newest, before, run = v, v, 1
		case v == newest && n == 0:
			run++
		case v == before && n > 0:
			n++
			longest = max(longest, n)
		default:
			before, n = v, 1
			longest = max(longest, n)
		}
	}
	return run >= p.perDay && longest > 0 && run >= 2*longest
}

// errorsOf returns the sorted errors of forecasts that repeat the load of the given number of
// days earlier.
func (p *past) errorsOf(days int) []float64 {
	if e, ok := p.errors[days]; ok {
		return e
	}
	var errors []float64
	for i := range p.load {
		step := p.first + i
		if e := p.at(step) - p.at(step-days*p.perDay); !math.IsNaN(e) {
			errors = append(errors, e)
		}
	}
	slices.Sort(errors)
	if p.errors == nil {
		p.errors = map[int][]float64{}
	}
	p.errors[days] = errors
	return errors
}
