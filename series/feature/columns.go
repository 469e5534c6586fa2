package feature

import (
	"math"
	"slices"
	"sync"

	"loadstar/series"
)

// columns holds the values from which a meter's inputs are computed. If the inputs are needed
// only for origins from some step on, only the values for these origins are set.
type columns struct {
	scaling *Scaling
	steps   []point   // missing values filled
	at      []summary // for every step, and for the targets after the last step
}

// summary holds the values that summarise the loads before a step. Values over the last 24 or
// 168 hours include the step itself.
type summary struct {
	mean, most, least float32 // of the last 24 hours
	level, spread     float32 // mean and standard deviation of the last 168 hours
	dayRank, weekRank float32 // mean rank of the last 24 and 168 hours
	deviation         float32 // mean difference of load and weeks over the last 24 hours
	weeks             float32 // mean load at the same clock time 1 to 4 weeks before
	q25, median, q75  float32 // quartiles at the same clock time on the last 28 days
	medianRank        float32
}

const summaryBytes = 13 * 4

// point holds the scaled load of a step and its rank. Most examples read both.
type point struct{ load, rank float32 }

const pointBytes = 8

// bytes returns the memory that the columns need.
func (c *columns) bytes() int64 {
	return int64(len(c.steps))*pointBytes + int64(len(c.at))*summaryBytes + int64(len(c.scaling.Ranks.Value))*12 + 1024
}

// newColumns computes the columns of a meter for the origins that are not before since.
func (f *Frame) newColumns(m series.Meter, s *Scaling, since int) *columns {
	n, first := len(m.Load), f.clock.first(m)
	perDay, week := f.clock.perDay, 7*f.clock.perDay
	c := &columns{scaling: s, steps: make([]point, n), at: make([]summary, n+f.task.reach()+1)}
	since = max(since-1, 0) // an origin also reads the summary of the step before it
	// Sums over the last day and the last week are recomputed at steps that are multiples of a
	// day and of a week. A sum that starts a whole window before such a step therefore has the
	// same bits as a sum that starts earlier.
	dayStart, weekStart := max(since/perDay*perDay-perDay, 0), max(since/week*week-week, 0)
	f.addPoints(c, m, first, weekStart)
	f.addWeeks(c, m, first, dayStart)
	f.addQuartiles(c, m, first, since)
	day, level, squares := newMovingSum(perDay), newMovingSum(week), newMovingSum(week)
	dayRank, weekRank, deviation := newMovingSum(perDay), newMovingSum(week), newMovingSum(perDay)
	for i := weekStart; i < n; i++ {
		p, at := c.steps[i], &c.at[i]
		z, u := float64(p.load), float64(p.rank)
		day.add(z)
		level.add(z)
		squares.add(float64(z * z))
		dayRank.add(u)
		weekRank.add(u)
		deviation.add(z - float64(at.weeks))
		mean := level.sum / float64(week)
		at.mean, at.level = float32(day.sum/float64(perDay)), float32(mean)
		at.spread = float32(math.Sqrt(max(squares.sum/float64(week)-float64(mean*mean), 0)))
		at.dayRank, at.weekRank = float32(dayRank.sum/float64(perDay)), float32(weekRank.sum/float64(week))
		at.deviation = float32(deviation.sum / float64(perDay))
	}
	extremes(c, perDay, dayStart)
	return c
}

// addPoints computes the scaled loads of all steps, and the ranks of the steps that are not
// before ranked.
func (f *Frame) addPoints(c *columns, m series.Meter, first, ranked int) {
	filled := false
	for i, v := range m.Load {
		switch {
		case series.Missing(v):
			c.steps[i] = f.fill(c, m, first, i)
			filled = true
		case i < ranked:
			c.steps[i].load = c.scaling.scaled(v)
		default:
			c.steps[i] = point{c.scaling.scaled(v), c.scaling.Ranks.rank(v)}
		}
	}
	if filled && ranked > 0 {
		// A missing load has the rank of a step up to 28 days earlier, so all ranks are needed.
		f.addPoints(c, m, first, 0)
	}
}

// oldestFill is the maximum age in days of a load that replaces a missing one. Without
// a limit, the inputs of an origin could depend on loads of any age.
const oldestFill = 28

// fill returns the replacement for the missing load of step i, which is the newest earlier load
// at the same clock time. On the first day of the series it is the previous load. If there is
// no such load within the last 28 days, the replacement is the mean of the training split, for
// which the scaled load and the rank are 0.
func (f *Frame) fill(c *columns, m series.Meter, first, i int) point {
	for at := i; ; {
		before := f.clock.back(first+at, 1) - first
		switch {
		case i-before > oldestFill*f.clock.perDay:
			return point{}
		case before < 0 && at < i:
			return c.steps[at]
		case before < 0 && i > 0:
			return c.steps[i-1]
		case before < 0:
			return point{}
		case !series.Missing(m.Load[before]):
			return c.steps[before]
		}
		at = before
	}
}

// addWeeks computes, for every step that is not before from, the mean load at the same clock
// time 1 to 4 weeks earlier. If none of these loads was measured, it uses the profile.
func (f *Frame) addWeeks(c *columns, m series.Meter, first, from int) {
	for i := from; i < len(c.at); i++ {
		sum, n := 0.0, 0
		for k := 7; k <= 28; k += 7 {
			if j := f.clock.back(first+i, k) - first; j >= 0 && j < len(m.Load) && !series.Missing(m.Load[j]) {
				sum += float64(c.steps[j].load)
				n++
			}
		}
		if n > 0 {
			c.at[i].weeks = float32(sum / float64(n))
		} else {
			c.at[i].weeks = c.scaling.Profile[f.clock.steps[first+i].kind]
		}
	}
}

// extremes computes the maximum and the minimum of the last n loads. Every window of n
// steps consists of the end of one block of n steps and the start of the next. The first
// block starts at the step start, a multiple of n.
func extremes(c *columns, n, start int) {
	for from := start; from < len(c.steps); from += n {
		block := c.steps[from:min(from+n, len(c.steps))]
		most, least := block[0].load, block[0].load
		for i, p := range block {
			most, least = max(most, p.load), min(least, p.load)
			c.at[from+i].most, c.at[from+i].least = most, least
		}
		if from == 0 {
			continue
		}
		before := c.steps[from-n : from]
		most, least = before[n-1].load, before[n-1].load
		for i := n - 2; i >= 0; i-- { // the window that ends at block[i] starts at before[i+1]
			most, least = max(most, before[i+1].load), min(least, before[i+1].load)
			if i < len(block) {
				at := &c.at[from+i]
				at.most, at.least = max(at.most, most), min(at.least, least)
			}
		}
	}
}

// quartileDays is the number of days over which quartiles are taken.
const quartileDays = 28

var slotPool = sync.Pool{New: func() any { return new([]slot) }}

// addQuartiles computes the quartiles of the measured loads at the same clock time on the last
// 28 days. If clocks are put back on one of these days, addQuartiles uses the first of the two
// loads. If no load was measured on these days, addQuartiles uses the profile. It sets the
// quartiles of the steps that are not before since.
func (f *Frame) addQuartiles(c *columns, m series.Meter, first, since int) {
	memory := slotPool.Get().(*[]slot)
	defer slotPool.Put(memory)
	*memory = slices.Grow((*memory)[:0], f.clock.perDay)[:f.clock.perDay]
	slots := *memory
	clear(slots)
	// A reading is used for 28 days. One more day allows for clock changes.
	for i := max(since-(quartileDays+2)*f.clock.perDay, 0); i < len(c.at); i++ {
		at, when := &c.at[i], &f.clock.steps[first+i]
		w := &slots[when.slot]
		w.enter(when.day)
		if i >= since {
			w.sort()
		}
		if i < since {
			// Skip earlier steps.
		} else if w.n == 0 {
			v := c.scaling.Profile[when.kind]
			at.q25, at.median, at.q75 = v, v, v
		} else {
			at.q25, at.median, at.q75 = w.quartile(1), w.quartile(2), w.quartile(3)
			at.medianRank = c.scaling.Ranks.rank(w.sorted[w.n/2].kw)
		}
		if i < len(m.Load) && !series.Missing(m.Load[i]) {
			w.add(when.day, reading{m.Load[i], c.steps[i].load})
		}
	}
}

// reading is a measured load and its scaled value.
type reading struct{ kw, load float32 }

// slot holds the loads at one clock time on the last 28 days.
type slot struct {
	sorted [quartileDays]reading // by kw
	n      int
	queue  [quartileDays]dayReading // in order of days, from oldest
	oldest int
	today  dayReading // not in the queue before the next day
	begun  bool
	// isSorted means that sorted contains the readings of the queue. Readings are sorted
	// when they are first needed, because sorting them once takes less time than keeping
	// them sorted.
	isSorted bool
}

const slotBytes = 592

type dayReading struct {
	day int32
	reading
}

// enter advances the slot to a day.
func (s *slot) enter(day int32) {
	for s.n > 0 && s.queue[s.oldest].day < day-quartileDays {
		if s.isSorted {
			at := s.place(s.queue[s.oldest].kw)
			copy(s.sorted[at:], s.sorted[at+1:s.n])
		}
		s.n--
		s.oldest = (s.oldest + 1) % quartileDays
	}
	if !s.begun || s.today.day >= day {
		return
	}
	s.begun = false
	if s.today.day < day-quartileDays {
		return
	}
	if s.isSorted {
		at := s.place(s.today.kw)
		copy(s.sorted[at+1:s.n+1], s.sorted[at:s.n])
		s.sorted[at] = s.today.reading
	}
	s.queue[(s.oldest+s.n)%quartileDays] = s.today
	s.n++
}

// sort sorts the readings of the queue. Readings with the same load are interchangeable.
func (s *slot) sort() {
	if s.isSorted {
		return
	}
	s.isSorted = true
	// Counting the smaller readings takes more comparisons than other ways to sort, but needs
	// no branches, which would be mispredicted.
	var keys [quartileDays]int64
	var smaller [quartileDays]int
	for i := range s.n {
		keys[i] = ordered(s.queue[(s.oldest+i)%quartileDays].kw)
		n := i
		for k, key := range keys[:i] {
			below := int((keys[i] - key) >> 63) // -1 if keys[i] is smaller, else 0
			smaller[k] -= below
			n += below
		}
		smaller[i] = n
	}
	for i := range s.n {
		s.sorted[smaller[i]] = s.queue[(s.oldest+i)%quartileDays].reading
	}
}

// place returns the index of the first load that is not below kw.
func (s *slot) place(kw float32) int {
	at, size := 0, s.n
	for size > 0 {
		half := size / 2
		if s.sorted[at+half].kw < kw {
			at += half + 1
			size -= half + 1
		} else {
			size = half
		}
	}
	return at
}

// add adds the load of a day, unless the day already has one.
func (s *slot) add(day int32, r reading) {
	if !s.begun {
		s.today, s.begun = dayReading{day, r}, true
	}
}

// quartile returns a quartile of the scaled loads, interpolated between neighbours.
func (s *slot) quartile(quarter int) float32 {
	place := quarter * (s.n - 1)
	low := s.sorted[place/4].load
	if place%4 == 0 {
		return low
	}
	high := s.sorted[place/4+1].load
	return low + float32((high-low)*(float32(place%4)/4))
}
