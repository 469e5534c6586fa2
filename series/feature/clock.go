package feature

import (
	"math"
	"slices"
	"time"

	"loadstar/series"
)

// longestCarry is how long the newest weather value replaces missing ones. After that, the
// weather is unknown and the inputs from it are 0.
const longestCarry = 6 * time.Hour

// clock holds the data that all meters of a dataset share: calendar, lags and weather for every
// step of the dataset's span and for the targets after the span. Steps are counted from the
// span's start.
type clock struct {
	start   int64
	seconds int64 // the length of a step
	perDay  int
	steps   []instant
	// shifts holds, for each number of days and each step, the difference between the lag and
	// days·perDay steps. It is empty if there is no clock change in the span.
	shifts      [][]int16
	waves       [][4]float32 // one and two cycles a day, by slot
	temperature weather
	wind        weather
}

// instant is the calendar of a step.
type instant struct {
	day     int32 // number of the day on the local clock
	slot    int32 // number of the step in the day on the local clock
	hour    uint8
	weekday uint8 // Monday is 0
	kind    uint8 // the cell of a profile
	flags   uint8
}

const instantBytes = 12

// The flags of a step, in the order of their inputs.
const (
	weekend = 1 << iota
	weekendDayBefore
	isHoliday
	holidayDayBefore
	holidayWeekBefore
	yearEnd
	yearEndWeekBefore
)

func newClock(d *series.Dataset, f *series.Framer, t Task) (*clock, error) {
	from, to := d.Span()
	c := &clock{start: from, seconds: d.Seconds(), perDay: d.StepsPerDay()}
	c.steps = make([]instant, int((to-from)/c.seconds)+t.reach()+1)
	publicHoliday := func(time.Time) bool { return false }
	if d.Country != "" {
		var err error
		if publicHoliday, err = Holidays(d.Country); err != nil {
			return nil, err
		}
	}
	steady, firstOffset := true, 0
	for i := range c.steps {
		at := d.Time(from, i)
		_, offset := at.Zone()
		if i == 0 {
			firstOffset = offset
		}
		steady = steady && offset == firstOffset
		local := at.Unix() + int64(offset)
		s := &c.steps[i]
		s.day = int32(floorDiv(local, 86400))
		s.slot = int32((local - int64(s.day)*86400) / c.seconds)
		s.hour = uint8(at.Hour())
		s.weekday = uint8((int(at.Weekday()) + 6) % 7)
		s.kind = 24*max(s.weekday, 4) - 24*4 + s.hour
		if i > 0 && c.steps[i-1].day == s.day {
			s.flags = c.steps[i-1].flags
		} else {
			s.flags = dayFlags(at, publicHoliday)
		}
	}
	if !steady {
		c.findShifts(f, t)
	}
	c.ownHolidays(d)
	c.waves = make([][4]float32, c.perDay)
	for slot := range c.waves {
		phase := 2 * math.Pi * float64(slot) / float64(c.perDay)
		for i, v := range []float64{math.Sin(phase), math.Cos(phase), math.Sin(2 * phase), math.Cos(2 * phase)} {
			// Rounding removes differences in the last bits between platforms.
			c.waves[slot][i] = float32(math.Round(v*(1<<24)) / (1 << 24))
		}
	}
	c.temperature = c.newWeather(d, "temperature")
	c.wind = c.newWeather(d, "wind")
	return c, nil
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		a -= b - 1
	}
	return a / b
}

func dayFlags(at time.Time, publicHoliday func(time.Time) bool) (flags uint8) {
	dayBefore, weekBefore := at.AddDate(0, 0, -1), at.AddDate(0, 0, -7)
	free := func(t time.Time) bool { return t.Weekday() == time.Saturday || t.Weekday() == time.Sunday }
	yearEnds := func(t time.Time) bool {
		return t.Month() == time.December && t.Day() >= 24 || t.Month() == time.January && t.Day() == 1
	}
	for i, is := range []bool{
		free(at), free(dayBefore), publicHoliday(at), publicHoliday(dayBefore), publicHoliday(weekBefore), yearEnds(at), yearEnds(weekBefore),
	} {
		if is {
			flags |= 1 << i
		}
	}
	return flags
}

// findShifts computes the lags that the inputs need.
func (c *clock) findShifts(f *series.Framer, t Task) {
	days := shiftDays(c.perDay, t)
	c.shifts = make([][]int16, slices.Max(days)+1)
	m := series.Meter{Start: c.start}
	for _, k := range days {
		if k == 0 || c.shifts[k] != nil {
			continue
		}
		c.shifts[k] = make([]int16, len(c.steps))
		for i := range c.steps {
			c.shifts[k][i] = int16(f.Lag(m, i, k) - i + k*c.perDay)
		}
	}
}

// shiftDays returns the numbers of days for which the inputs need lags.
func shiftDays(perDay int, t Task) []int {
	days := []int{7, 14, 21, 28}
	for k := range max(8, t.reach()/perDay+3) {
		days = append(days, k)
	}
	return days
}

// back returns the step at the same clock time the given number of days before a step.
func (c *clock) back(step, days int) int {
	step -= days * c.perDay
	if len(c.shifts) > 0 {
		if at := step + days*c.perDay; at >= 0 {
			step += int(c.shifts[days][at])
		}
	}
	return step
}

// ownHolidays replaces the public holidays with the dataset's column holiday where that
// column has values.
func (c *clock) ownHolidays(d *series.Dataset) {
	column := d.Weather.Column("holiday")
	if column == nil {
		return
	}
	offset := int(floorDiv(c.start-d.Weather.Start, c.seconds))
	for i := range c.steps {
		for _, f := range []struct {
			step int
			flag uint8
		}{{i, isHoliday}, {c.back(i, 1), holidayDayBefore}, {c.back(i, 7), holidayWeekBefore}} {
			if at := f.step + offset; at < 0 || at >= len(column) || series.Missing(column[at]) {
				continue
			} else if column[at] > 0 {
				c.steps[i].flags |= f.flag
			} else {
				c.steps[i].flags &^= f.flag
			}
		}
	}
}

// first returns the number of a meter's first step.
func (c *clock) first(m series.Meter) int { return int((m.Start - c.start) / c.seconds) }

// weather is a weather column.
type weather struct {
	values []float32 // NaN where it is unknown
	means  []float32 // mean of the known values of the last 24 hours
}

// newWeather returns the named weather column of the dataset on the clock's steps. A missing
// value is replaced by the newest value before it, for at most longestCarry.
func (c *clock) newWeather(d *series.Dataset, name string) weather {
	column := d.Weather.Column(name)
	if column == nil {
		return weather{}
	}
	w := weather{values: make([]float32, len(c.steps)), means: make([]float32, len(c.steps))}
	offset := int(floorDiv(c.start-d.Weather.Start, c.seconds))
	most := max(int(longestCarry/d.Interval), 1)
	last := -most - 1 // the newest step with a value
	for i := range w.values {
		w.values[i] = float32(math.NaN())
		if at := i + offset; at >= 0 && at < len(column) && !series.Missing(column[at]) {
			w.values[i], last = column[at], i
		} else if i-last <= most {
			w.values[i] = w.values[last]
		}
	}
	sum := newMovingSum(c.perDay)
	known := newMovingSum(c.perDay)
	for i, v := range w.values {
		if series.Missing(v) {
			sum.add(0)
			known.add(0)
		} else {
			sum.add(float64(v))
			known.add(1)
		}
		w.means[i] = float32(sum.sum / known.sum) // NaN if no value is known
	}
	return w
}

func (w *weather) moments(from, to int) Moments {
	if w.values == nil {
		return Moments{0, 1}
	}
	m := moments(w.values[from:to])
	m.Deviation = max(m.Deviation, 1e-9)
	return m
}

// at returns the scaled value at a step, and whether it is known.
func (m Moments) at(values []float32, step int) (float32, bool) {
	if step < 0 || step >= len(values) || series.Missing(values[step]) {
		return 0, false
	}
	return float32((float64(values[step]) - m.Mean) / m.Deviation), true
}

// movingSum is the sum of the last n values. It is recomputed at intervals, so rounding
// errors do not add up.
type movingSum struct {
	last []float64
	at   int
	sum  float64
}

func newMovingSum(n int) *movingSum { return &movingSum{last: make([]float64, n)} }

func (m *movingSum) add(v float64) {
	m.sum += v - m.last[m.at]
	m.last[m.at] = v
	if m.at++; m.at == len(m.last) {
		m.at, m.sum = 0, 0
		for _, v := range m.last {
			m.sum += v
		}
	}
}
