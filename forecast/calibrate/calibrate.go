// Package calibrate corrects a client's forecasts with the errors of its earlier
// forecasts. A [Tracker] shifts forecasts by the usual error at the same hour, blends them
// with a reference forecast, and moves the bounds of intervals until they contain the
// intended share of loads.
//
// A tracker uses only loads that are known when a forecast is made. Its memory does not
// grow with time.
//
// A [Detector] notices when a client's model becomes worse compared with last week's load, and
// [CheckCoverage] when its intervals contain too few or too many loads. Holidays and weather
// increase the errors of a model, but also those of last week's load. The ratio of these errors
// changes less, so it causes fewer false alarms than the model's errors alone.
package calibrate

import (
	"fmt"
	"math"
	"slices"
)

const (
	// blendDays is the number of days over which the errors of the model and the reference are
	// compared. Days on which forecasts could not be compared with loads are ignored.
	blendDays = 14
	// leastShiftDays is the minimum number of such days before a tracker shifts forecasts, and
	// leastBlendDays is the minimum number before it blends them.
	leastShiftDays = 5
	leastBlendDays = 6
	// blendPower is the exponent p in the weight of the model, N^p / (M^p + N^p). M and N are
	// the errors of the model and the reference. A high power hardly changes forecasts that are
	// clearly better than the reference. On validation data, a power of 16 lowered the error of
	// models that had become bad and did not affect other models. A power of 2 increased the
	// error of good models by 3 to 5 %, and a power of 8 increased the error for homes by 0.5 %.
	blendPower = 16
	// shiftShare is the share of the median error at the same hour by which forecasts are
	// shifted. On validation data, larger shares improved the forecasts of some buildings, but
	// made those of homes worse.
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
// Observe with the load of the step and then, if a forecast is made after this step, Issue. A
// Tracker is not safe for concurrent use.
type Tracker struct {
	c         Config
	width     int     // forecasts per target
	bounds    *bounds // nil if the model forecasts only points
	open      []issue // issues with targets that are not known yet, oldest first
	spare     []issue // memory of closed issues
	errors    ring[errorSums]
	residuals ring[[]residual] // residuals of each day, by step of the day
	shifts    []shift          // by hour
	scratch   []float64
	next      int     // the first step that is not observed yet
	lowest    float64 // lowest load that was observed, or infinity
}

// issue contains the values of one issue that will be compared with loads.
type issue struct {
	last int
	// Each row contains the forecasts of one target: the model's point forecast, the shifted
	// point forecast, the reference, and the blended point forecast, followed for each level by
	// the blended quantile and the moved quantile.
	rows []float32
}

// residual is the mean of load minus point forecast over all forecasts of a step.
type residual struct{ sum, n float32 }

// shift is the amount by which forecasts for an hour are shifted on a day.
type shift struct {
	day int
	by  float64
}

// errorSums contains the sums of absolute errors over the targets of a day.
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
		t.residuals.days = make([][]residual, blendDays+1) // one more for the current day
		all := make([]residual, len(t.residuals.days)*c.StepsPerDay)
		for i := range t.residuals.days {
			t.residuals.days[i] = all[i*c.StepsPerDay:][:c.StepsPerDay:c.StepsPerDay]
		}
		t.shifts = make([]shift, 24)
		for i := range t.shifts {
			t.shifts[i].day = -1
		}
	}
	if len(c.Levels) > 0 {
		t.bounds = newBounds(c, t.Every())
	}
	return t, nil
}

// columns returns the number of values in a row of an issue.
func (t *Tracker) columns() int { return 4 + 2*len(t.c.Levels) }

// Observe compares earlier forecasts of a step with its load. Steps must be in ascending order,
// and may be omitted. A load that is not a finite number is ignored.
func (t *Tracker) Observe(step int, load float64) {
	known := !math.IsNaN(load) && !math.IsInf(load, 0)
	if step < t.next {
		panic(fmt.Sprintf("calibrate: step %d after step %d", step, t.next-1))
	}
	t.next = step + 1
	if known && load < t.lowest {
		t.lowest = load
	}
	closed := 0
	for _, is := range t.open {
		target := step - is.last - t.c.Horizon
		if target >= 0 && target < t.c.Targets && known {
			n := t.columns()
			t.compare(step, target, is.rows[target*n:][:n], load)
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

func (t *Tracker) compare(step, target int, row []float32, load float64) {
	day := step / t.c.StepsPerDay
	if t.c.Correct {
		today := *t.residuals.at(day, func(s *[]residual) { clear(*s) })
		r := &today[step%t.c.StepsPerDay]
		r.sum += float32(load - float64(row[0]))
		r.n++
	}
	if reference := float64(row[2]); !math.IsNaN(reference) {
		sums := t.errors.at(day, func(s *errorSums) { *s = errorSums{} })
		sums.model += math.Abs(float64(row[1]) - load)
		sums.reference += math.Abs(reference - load)
		sums.n++
	}
	if t.bounds != nil {
		t.bounds.learn(step, target, float64(row[3]), row[4:], load)
	}
}

// Every returns the number of steps between the issues that a client records with Issue. It is
// the largest divisor of a day's steps that is at most a quarter of the targets and at most 6
// hours. For issues in between, call Correct instead. The state of a tracker therefore does not
// depend on how often a client makes forecasts.
func (t *Tracker) Every() int { return t.c.Every() }

// Every returns the same as [Tracker.Every].
func (c Config) Every() int {
	every := max(min(c.Targets, c.StepsPerDay)/4, 1)
	for c.StepsPerDay%every != 0 {
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
// Observe has been called for this step. forecasts contains one row per target, with one value
// per level in ascending order. references contains one value per target, or NaN if the target
// has none. Issue changes the forecasts in place, and records them for comparison with later
// loads.
func (t *Tracker) Issue(last int, forecasts, references []float64) {
	is := t.newIssue(last)
	t.serve(last, forecasts, references, is.rows)
	t.open = append(t.open, is)
}

// Correct changes the forecasts as Issue does, but does not record them.
func (t *Tracker) Correct(last int, forecasts, references []float64) {
	t.serve(last, forecasts, references, t.unrecorded())
}

// serve corrects forecasts, and writes the values for later comparison to rows.
func (t *Tracker) serve(last int, forecasts, references []float64, rows []float32) {
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
		keep[0] = float32(row[t.c.Point])
		if t.c.Correct {
			by := t.shift(day, last+t.c.Horizon+target)
			for i := range row {
				row[i] += by
			}
		}
		keep[1], keep[2] = float32(row[t.c.Point]), float32(reference)
		if weight < 1 && !math.IsNaN(reference) {
			for i, v := range row {
				row[i] = float64(weight*v) + float64((1-weight)*reference)
			}
		}
		if keep[3] = float32(row[t.c.Point]); t.bounds != nil {
			t.bounds.move(last+t.c.Horizon+target, target, row, keep[4:t.columns()], t.lowest >= 0 && !math.IsInf(t.lowest, 1))
		}
	}
}

// unrecorded returns memory for the rows of an issue that is not recorded.
func (t *Tracker) unrecorded() []float32 {
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
	return issue{last: last, rows: make([]float32, t.c.Targets*t.columns())}
}

// shift returns the amount by which forecasts for a step are shifted on a day: a share of the
// median error at the same hour on earlier days. The shift is 0 until the errors of a few days
// are known.
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
				all = append(all, float64(r.sum/r.n))
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

// weight returns the weight of the model in a blend. The weight is 1 until the errors of a few
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
