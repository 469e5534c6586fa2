package issue

import (
	"math"
	"slices"
	"time"

	"loadstar/series"
)

// work contains the buffers for one call of Issue. They are reused by later calls.
type work struct {
	past
	extreme int // the local day with the highest peak, or 0 if there is none

	medians, sorted []float64 // medians contains a median for each step of the next 24 hours
	byMedian        bool      // medians forecast the client better than last week's load does

	raw, values, fallbacks, simple []float64
	sources                        []Source
	reasons                        []Reason
	days                           []int        // age in days of the load that a row repeats, or 0
	quantiles                      [][3]float64 // quantiles of the rows, at meanLevels
}

// Issue makes the forecast at a cutoff, which must be a multiple of the step. It advances the
// state to the cutoff, and records the forecast if a recorded issue is due. Readings at or
// after the cutoff have no effect. A forecast at an earlier cutoff than the state's is not
// corrected, because the errors from which the state has learned were not yet known at that
// time.
//
// The models must belong to the meter, whose readings should reach back at least 29 days. Older
// readings have no effect.
func (s *State) Issue(m series.Meter, models Models, cutoff int64) Forecast {
	late := s.begin(m, cutoff)
	s.simple(late)
	a, why := s.ask(models, cutoff, late)
	f := Forecast{Client: m.ID, Cutoff: cutoff, Levels: slices.Clone(s.c.Levels)}
	if models.Own != nil {
		f.Model = models.Own.Name()
	} else if models.Generic != nil {
		f.Model = models.Generic.Name()
	}
	if a != nil {
		f.Weight = a.weight
		if a.source == Generic {
			f.Model = models.Generic.Name()
		}
	}
	s.complete(&f, s.rows(a, why, cutoff), late)
	return f
}

// rows returns the rows of all tracked steps, from a model's answer and from the
// fallbacks.
func (s *State) rows(a *answer, why Reason, cutoff int64) []Row {
	width := len(s.levels)
	rows := make([]Row, s.tracked())
	values := make([]float64, len(rows)*len(s.pick))
	for i := range rows {
		row := &rows[i]
		*row = Row{Time: cutoff + int64(i)*s.seconds, Values: values[i*len(s.pick):][:len(s.pick):len(s.pick)]}
		var from []float64
		if a != nil && i+1 >= a.first && i+1 < a.first+a.n {
			row.Source, row.Quality, row.Reason = a.source, a.quality, a.reason
			from = a.values[(i+1-a.first)*width:][:width]
		} else {
			row.Source, row.Quality, row.Reason = s.work.sources[i], Estimated, s.work.reasons[i]
			if row.Source == None {
				row.Quality = Missing
			}
			if row.Source == Week || row.Source == Median {
				if row.Reason = why; a != nil {
					row.Reason = BeyondReach
				}
			}
			from = s.work.fallbacks[i*width:][:width]
		}
		s.fill(row, from)
	}
	return rows
}

// fill writes the values and the mean of a row. It is given the values of all levels, and
// changes them.
func (s *State) fill(row *Row, from []float64) {
	if s.hasRead && !s.fedIn {
		for i, v := range from {
			from[i] = max(v, 0) // NaN remains NaN
		}
	}
	slices.Sort(from)
	for k, at := range s.pick {
		row.Values[k] = from[at]
	}
	q := [3]float64{from[s.means[0]], from[s.means[1]], from[s.means[2]]}
	row.Mean = Mean(q[0], q[1], q[2])
	s.work.quantiles = append(s.work.quantiles, q)
}

// complete adds to a forecast its rows, which are the first rows of all tracked steps, and the
// values that are computed from several rows.
func (s *State) complete(f *Forecast, rows []Row, late bool) {
	f.Rows = rows[:s.c.H:s.c.H]
	f.nonnegative = s.hasRead && !s.fedIn
	end := f.Rows[s.c.H-1].Time + s.seconds
	for _, d := range s.energy(rows, f.Cutoff, late) {
		if d.End <= end {
			f.Days = append(f.Days, d)
		}
	}
	f.Peak = s.peak(rows, s.work.quantiles, late)
}

// references returns the forecasts with which a model's forecasts are blended. Each is the load
// at the same clock time on the newest known day, or the newest load if only the next step is
// forecast.
func (s *State) references(first, n int) []float64 {
	w := &s.work
	w.simple = resized(w.simple, n)
	for i := range w.simple {
		if first == 1 && n == 1 {
			w.simple[i] = w.at(w.last)
			continue
		}
		target := w.last + first + i
		step, back := s.work.newestDay(target, 1)
		if w.simple[i] = w.at(step); math.IsNaN(w.simple[i]) {
			// When the clocks change, the readings may not contain this clock time.
			w.simple[i] = w.at(target - back*s.perDay)
		}
	}
	return w.simple
}

// simple makes the forecasts that need no model, including their intervals.
func (s *State) simple(late bool) {
	w, width, n := &s.work, len(s.levels), s.fallback.c.Targets
	w.fallbacks = resized(w.fallbacks, n*width)
	w.sources = slices.Grow(w.sources[:0], n)[:n]
	w.reasons = slices.Grow(w.reasons[:0], n)[:n]
	w.days = slices.Grow(w.days[:0], n)[:n]
	w.extreme, w.byMedian = 0, false
	if s.c.Fallback == ExtremeDay {
		w.extreme = s.work.extremeDay()
	} else {
		s.medians()
	}
	complete := true
	for i := range n {
		var v float64
		v, w.sources[i], w.reasons[i], w.days[i] = s.simpleAt(w.last + 1 + i)
		complete = complete && w.sources[i] != None
		for k := range width {
			w.fallbacks[i*width+k] = v
		}
	}
	switch {
	case late:
	case complete:
		s.correct(s.fallback, w.fallbacks, s.unknown(n))
	case s.fallback.ripe(w.last):
		s.correctKnown()
	}
	if !late && s.fallback.ripe(w.last) {
		return
	}
	for i, source := range w.sources {
		if source != None {
			s.young(w.fallbacks[i*width:][:width], w.days[i])
		}
	}
}

// correctKnown corrects the rows that have a value. It does not record them, because a tracker
// compares whole issues.
func (s *State) correctKnown() {
	w, width := &s.work, len(s.levels)
	each := func(v float64) {
		for i, source := range w.sources {
			for k := range width {
				if source == None {
					w.fallbacks[i*width+k] = v
				}
			}
		}
	}
	each(0)
	s.fallback.Correct(w.last, w.fallbacks, s.unknown(len(w.sources)))
	each(math.NaN())
}

// unknown returns n references that are NaN.
func (s *State) unknown(n int) []float64 {
	s.work.simple = resized(s.work.simple, n)
	for i := range s.work.simple {
		s.work.simple[i] = math.NaN()
	}
	return s.work.simple
}

// lastHours is the maximum age, in hours, at which the newest load can serve as a forecast.
const lastHours = 6

// simpleAt returns a forecast for a target without a model, its source, and the reason why it
// does not come from a better source. days is the age in days of the repeated load, or 0.
func (s *State) simpleAt(target int) (v float64, source Source, reason Reason, days int) {
	w := &s.work
	if w.extreme != 0 {
		back := s.clock.day(s.start(target)) - w.extreme
		if step := s.back(target, back); step <= w.last {
			if v = w.at(step); !math.IsNaN(v) {
				return v, Week, "", 7
			}
		}
	}
	if w.byMedian {
		if v = s.medianAt(target); !math.IsNaN(v) {
			return v, Median, "", 7
		}
	}
	step, back := s.work.newestDay(target, 7)
	if v = w.at(step); !math.IsNaN(v) {
		return v, Week, "", 7
	}
	if v = w.at(s.back(target, back+7)); !math.IsNaN(v) {
		return v, Week, "", 7
	}
	if reason = Gap; w.oldest > w.newest || w.oldest > step {
		reason = ShortHistory
	}
	step, _ = s.work.newestDay(target, 1)
	if v = w.at(step); !math.IsNaN(v) {
		return v, Day, reason, 1
	}
	if w.newest >= w.oldest && time.Duration(w.last-w.newest)*s.c.Step < lastHours*time.Hour {
		return w.at(w.newest), Last, reason, 0
	}
	return math.NaN(), None, NoReadings, 0
}
