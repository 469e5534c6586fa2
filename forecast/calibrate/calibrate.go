// Package calibrate corrects a client's forecasts with the errors of its earlier
// forecasts. A [Tracker] shifts forecasts by the usual error at the same hour, blends them
// with a reference forecast, and moves the bounds of intervals until they contain the share
// of loads that they should.
//
// A tracker uses only loads that are known when a forecast is made. Its memory does not
// grow with time, so that a client can keep one.
package calibrate

import (
	"fmt"
	"math"
	"slices"
)

const (
	// blendDays is the number of days over which the errors of model and reference are
	// compared, and intervalDays that over which intervals are calibrated. Both include
	// only days on which forecasts could be compared with loads.
	blendDays    = 14
	intervalDays = 28
	// leastDays is the number of such days before a tracker moves intervals, leastShiftDays
	// that before it shifts forecasts, and leastBlendDays that before it blends.
	leastDays      = 3
	leastShiftDays = 5
	leastBlendDays = 6
	// blendPower is the exponent p in the weight of the model, N^p / (M^p + N^p). M and N
	// are the errors of model and reference. A high power leaves forecasts alone that are
	// clearly better than the reference. On validation data, power 16 lowered the error of
	// models that had become bad and left the others alone. Power 2 raised the error of
	// good models by 3 to 5 %, and power 8 that of homes by 0.5 %.
	blendPower = 16
	// shiftShare is the share of the median error at the same hour by which forecasts are
	// shifted. On validation data, larger shares helped some buildings and hurt homes.
	shiftShare = 0.3
)

// Config describes the forecasts of a client.
type Config struct {
	// Levels are the quantiles that the model forecasts, in ascending order, or nil if it
	// forecasts only points.
	Levels []float64
	// Point is the index of the point forecast in the levels.
	Point int
	// Horizon is the number of steps from the newest known load to the first target.
	// Targets is the number of consecutive steps to forecast.
	Horizon, Targets int
	StepsPerDay      int
	// Correct means that forecasts are shifted and blended with the reference. Otherwise
	// only intervals are moved.
	Correct bool
}

// Tracker corrects the forecasts of one client. For each step in chronological order, call
// Observe with the load of the step and then Issue, if a forecast is made after this step.
// A Tracker is not safe for concurrent use.
type Tracker struct {
	c         Config
	width     int // forecasts per target
	intervals []interval
	open      []issue // issues with targets that are not known yet, oldest first
	spare     []issue // memory of closed issues
	errors    ring[errorSums]
	residuals ring[[]residual] // of each day, by step of the day
	shifts    []shift          // by hour
	scratch   []float64
	next      int     // the first step that is not observed yet
	lowest    float64 // load that was observed, or infinity
}

// interval is a central interval of two levels.
type interval struct {
	low, high int     // indices of its levels
	share     float64 // of loads that it should contain
	scores    ring[[]float32]
	widen     float64 // of the current day
	day       int
}

// issue has what one issue of forecasts will be compared with.
type issue struct {
	last int
	// Each row has the forecasts of one target: the model's point forecast, the shifted
	// one, the reference, and the blended bounds of each interval.
	rows []float64
}

// residual is the mean of load minus point forecast over all forecasts of a step.
type residual struct {
	sum float64
	n   int
}

// shift is the amount by which forecasts of an hour are shifted on a day.
type shift struct {
	day int
	by  float64
}

// errorSums has the sums of absolute errors over the targets of a day.
type errorSums struct {
	model, reference float64
	n                int
}

// New returns a tracker that has seen no forecast.
func New(c Config) (*Tracker, error) {
	t := &Tracker{c: c, width: max(len(c.Levels), 1), lowest: math.Inf(1)}
	if c.Horizon < 1 || c.Targets < 1 || c.StepsPerDay < 1 || c.Point < 0 || c.Point >= t.width || !slices.IsSorted(c.Levels) {
		return nil, fmt.Errorf("calibrate: %+v; want a horizon, targets and steps per day of at least 1, ascending levels, and one of them as the point forecast", c)
	}
	t.errors.days = make([]errorSums, blendDays)
	if c.Correct {
		t.residuals.days = make([][]residual, blendDays+1) // one more for today
		for i := range t.residuals.days {
			t.residuals.days[i] = make([]residual, c.StepsPerDay)
		}
		t.shifts = make([]shift, 24)
		for i := range t.shifts {
			t.shifts[i].day = -1
		}
	}
	for low, level := range c.Levels {
		for high := low + 1; high < len(c.Levels); high++ {
			if math.Abs(level+c.Levels[high]-1) < 1e-9 {
				i := interval{low: low, high: high, share: c.Levels[high] - level, day: -1}
				i.scores.days = make([][]float32, intervalDays+1) // one more for today
				t.intervals = append(t.intervals, i)
			}
		}
	}
	return t, nil
}

// columns returns the number of values in a row of an issue.
func (t *Tracker) columns() int { return 3 + 2*len(t.intervals) }

// Observe compares earlier forecasts of a step with its load. Steps must ascend, and may be
// left out. A load that is NaN is ignored.
func (t *Tracker) Observe(step int, load float64) {
	if step < t.next {
		panic(fmt.Sprintf("calibrate: step %d after step %d", step, t.next-1))
	}
	t.next = step + 1
	if load < t.lowest {
		t.lowest = load
	}
	closed := 0
	for _, is := range t.open {
		target := step - is.last - t.c.Horizon
		if target >= 0 && target < t.c.Targets && !math.IsNaN(load) {
			n := t.columns()
			t.compare(step, is.rows[target*n:][:n], load)
		}
		if target >= t.c.Targets-1 {
			closed++
		}
	}
	if closed > 0 {
		t.spare = append(t.spare, t.open[:closed]...)
		t.open = slices.Delete(t.open, 0, closed)
	}
}

func (t *Tracker) compare(step int, row []float64, load float64) {
	day := step / t.c.StepsPerDay
	if t.c.Correct {
		today := *t.residuals.at(day, func(s *[]residual) { clear(*s) })
		r := &today[step%t.c.StepsPerDay]
		r.sum += load - row[0]
		r.n++
	}
	if reference := row[2]; !math.IsNaN(reference) {
		sums := t.errors.at(day, func(s *errorSums) { *s = errorSums{} })
		sums.model += math.Abs(row[1] - load)
		sums.reference += math.Abs(reference - load)
		sums.n++
	}
	for i := range t.intervals {
		low, high := row[3+2*i], row[4+2*i]
		scores := t.intervals[i].scores.at(day, func(s *[]float32) { *s = (*s)[:0] })
		*scores = append(*scores, float32(max(low-load, load-high)))
	}
}

// Every returns the number of steps between the issues that a client records with Issue. It
// is the largest divisor of a day's steps that is at most a quarter of the targets and at
// most 6 hours. Issues between them only need Correct. So the state of a tracker does not
// depend on how often a client makes forecasts.
func (t *Tracker) Every() int {
	every := max(min(t.c.Targets, t.c.StepsPerDay)/4, 1)
	for t.c.StepsPerDay%every != 0 {
		every--
	}
	return every
}

// Weight returns the weight of the model in a blend with the reference, from 0 to 1, for an
// issue after the newest observed step.
func (t *Tracker) Weight() float64 {
	if !t.c.Correct {
		return 1
	}
	return t.weight(t.next / t.c.StepsPerDay)
}

// Issue corrects the forecasts that are made when step last is the newest known step, after
// Observe was called for it. Forecasts has one row per target, with one ascending value per
// level. References has one value per target, or NaN if the target has none. Issue changes
// the forecasts in place, and records them to compare them with later loads.
func (t *Tracker) Issue(last int, forecasts, references []float64) {
	is := t.newIssue(last)
	t.serve(last, forecasts, references, is.rows)
	t.open = append(t.open, is)
}

// Correct changes the forecasts as Issue does, but does not record them.
func (t *Tracker) Correct(last int, forecasts, references []float64) {
	t.serve(last, forecasts, references, t.unrecorded())
}

// serve corrects forecasts, and writes what they will be compared with to rows.
func (t *Tracker) serve(last int, forecasts, references, rows []float64) {
	if len(forecasts) != t.c.Targets*t.width || len(references) != t.c.Targets {
		panic(fmt.Sprintf("calibrate: %d forecasts and %d references for %d targets with %d values", len(forecasts), len(references), t.c.Targets, t.width))
	}
	if t.next > last+1 {
		panic(fmt.Sprintf("calibrate: forecasts from step %d after step %d was observed", last, t.next-1))
	}
	day := (last + 1) / t.c.StepsPerDay
	weight := 1.0
	if t.c.Correct {
		weight = t.weight(day)
	}
	for target, reference := range references {
		row := forecasts[target*t.width:][:t.width]
		keep := rows[target*t.columns():]
		keep[0] = row[t.c.Point]
		if t.c.Correct {
			by := t.shift(day, last+t.c.Horizon+target)
			for i := range row {
				row[i] += by
			}
		}
		keep[1], keep[2] = row[t.c.Point], reference
		if weight < 1 && !math.IsNaN(reference) {
			for i, v := range row {
				row[i] = float64(weight*v) + float64((1-weight)*reference)
			}
		}
		for i := range t.intervals {
			keep[3+2*i], keep[4+2*i] = row[t.intervals[i].low], row[t.intervals[i].high]
		}
		t.widen(day, row)
	}
}

// unrecorded returns memory for the rows of an issue that is not recorded.
func (t *Tracker) unrecorded() []float64 {
	if len(t.spare) == 0 {
		t.spare = append(t.spare, t.newIssue(0))
	}
	return t.spare[len(t.spare)-1].rows
}

func (t *Tracker) newIssue(last int) issue {
	if n := len(t.spare); n > 0 {
		is := t.spare[n-1]
		t.spare = t.spare[:n-1]
		is.last = last
		return is
	}
	return issue{last: last, rows: make([]float64, t.c.Targets*t.columns())}
}

// shift returns the amount by which forecasts of a step are shifted on a day: a share of the
// median error at the same hour on the days before. It is 0 until errors of a few days are
// known.
func (t *Tracker) shift(day, step int) float64 {
	perDay := t.c.StepsPerDay
	hour := step % perDay * 24 / perDay
	s := &t.shifts[hour]
	if s.day == day {
		return s.by
	}
	*s = shift{day: day}
	all, days := t.scratch[:0], 0
	t.residuals.each(day-1, func(at int, today *[]residual) {
		if at < day-blendDays {
			return
		}
		before := len(all)
		for i := (hour*perDay + 23) / 24; i < perDay && i*24/perDay == hour; i++ {
			if r := (*today)[i]; r.n > 0 {
				all = append(all, r.sum/float64(r.n))
			}
		}
		if len(all) > before {
			days++
		}
	})
	t.scratch = all
	if days >= leastShiftDays {
		slices.Sort(all)
		n := len(all)
		s.by = shiftShare * (float64(0.5*all[(n-1)/2]) + float64(0.5*all[n/2]))
	}
	return s.by
}

// weight returns the weight of the model in a blend. It is 1 until the errors of a few
// days are known, because the model was chosen with earlier data.
func (t *Tracker) weight(day int) float64 {
	var all errorSums
	days := 0
	t.errors.each(day, func(at int, s *errorSums) {
		all.model += s.model
		all.reference += s.reference
		if s.n > 0 && at < day {
			days++
		}
	})
	if days < leastBlendDays || all.model == 0 {
		return 1
	}
	ratio, power := all.model/all.reference, 1.0
	for range blendPower {
		power = float64(power * ratio)
	}
	return 1 / (1 + power) // 0 if only the reference has no error
}

// widen moves the bounds of the intervals in a row of forecasts. The bounds do not pass
// the point between them. If no load was negative so far, the lower bound is not negative.
func (t *Tracker) widen(day int, row []float64) {
	for i := range t.intervals {
		v := &t.intervals[i]
		if day != v.day {
			v.day, v.widen = day, v.quantile(day)
		}
		low, high := row[v.low], row[v.high]
		middle := float64(0.5*low) + float64(0.5*high)
		if t.c.Point > v.low && t.c.Point < v.high {
			middle = row[t.c.Point]
		}
		if low -= v.widen; t.lowest >= 0 && !math.IsInf(t.lowest, 1) {
			low = max(low, 0)
		}
		row[v.low], row[v.high] = min(low, middle), max(high+v.widen, middle)
	}
	if len(t.intervals) > 1 {
		slices.Sort(row) // intervals are moved independently
	}
}

// quantile returns the distance by which the bounds must move outward for the interval to
// contain its share of the loads of the days before the given day. The distance is negative
// if the interval contained more than its share, and 0 until there are enough days.
func (v *interval) quantile(day int) float64 {
	var days [][]float32
	n := 0
	v.scores.each(day-1, func(at int, s *[]float32) {
		if at >= day-intervalDays && len(*s) > 0 {
			slices.Sort(*s)
			days = append(days, *s)
			n += len(*s)
		}
	})
	if len(days) < leastDays {
		return 0
	}
	// One more than the number of scores, because the next score is as likely to be in any
	// of the gaps between them.
	rank := min(int(math.Ceil(float64(v.share*float64(n+1)))), n)
	return float64(smallest(days, rank))
}

// smallest returns the value with the given rank, counted from 1, in sorted lists of
// numbers. It takes time in proportion to the number of lists.
func smallest(lists [][]float32, rank int) float32 {
	var low, high uint32 = 0, math.MaxUint32
	for low < high {
		middle := low + (high-low)/2
		n := 0
		for _, list := range lists {
			at, _ := slices.BinarySearchFunc(list, middle, func(v float32, key uint32) int {
				if orderedBits(v) <= key {
					return -1
				}
				return 1
			})
			n += at
		}
		if n >= rank {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return fromOrderedBits(low)
}

const sign = 1 << 31

// orderedBits maps a number to an integer, so that larger numbers have larger integers.
func orderedBits(v float32) uint32 {
	bits := math.Float32bits(v)
	if bits&sign != 0 {
		return ^bits
	}
	return bits | sign
}

func fromOrderedBits(bits uint32) float32 {
	if bits&sign != 0 {
		return math.Float32frombits(bits &^ sign)
	}
	return math.Float32frombits(^bits)
}
