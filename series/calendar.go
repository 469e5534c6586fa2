package series

import (
	"math"
	"slices"
	"sort"
	"sync"
)

// calendar contains the calendar features of every step of a dataset's span. They are
// computed once and shared by all meters.
type calendar struct {
	start   int64
	columns map[string][]float32
	// steady means that the UTC offset never changes, so all days have the same number of
	// steps.
	steady bool

	mu   sync.Mutex
	lags map[int]*lag // by days
	d    *Dataset
	n    int
}

// calendarNames are the names of the calendar features.
var calendarNames = []string{"time_of_day", "hour", "day_of_week", "day_of_month", "day_of_year", "week_of_year"}

// WeatherNames returns the names that weather columns usually have.
func WeatherNames() []string {
	return []string{"temperature", "wind", "humidity", "solar", "holiday", "direct", "diffuse", "wind_direction"}
}

// StaticNames returns the names that static values of meters usually have.
func StaticNames() []string {
	return []string{"floor_area", "wall_area", "window_area", "roof_area", "cooling_capacity", "heating_capacity", "year_built"}
}

// InputNames returns the names of the inputs that datasets usually have. A dataset may have
// other inputs.
func InputNames() []string {
	return slices.Concat([]string{"load"}, calendarNames, WeatherNames(), StaticNames())
}

// InEveryDataset reports whether every dataset has the named input. Every dataset has the load
// and the calendar features, but may lack weather and static values.
func InEveryDataset(name string) bool { return name == "load" || slices.Contains(calendarNames, name) }

// newCalendar computes the calendar features for the span of a dataset and the given number
// of steps after it. The steps after the span are needed because an input may be a calendar
// feature of a target after the last reading.
func newCalendar(d *Dataset, ahead int) *calendar {
	from, to := d.Span()
	n := int((to-from)/d.Seconds()) + ahead
	c := &calendar{start: from, columns: map[string][]float32{}, steady: true, lags: map[int]*lag{}, d: d, n: n}
	for _, name := range calendarNames {
		c.columns[name] = make([]float32, n)
	}
	firstOffset := 0
	for i := range n {
		t := d.Time(from, i)
		if _, offset := t.Zone(); i == 0 {
			firstOffset = offset
		} else if offset != firstOffset {
			c.steady = false
		}
		_, week := t.ISOWeek()
		seconds := t.Hour()*3600 + t.Minute()*60 + t.Second()
		c.columns["time_of_day"][i] = float32(int64(seconds) / d.Seconds())
		c.columns["hour"][i] = float32(t.Hour())
		c.columns["day_of_week"][i] = float32((int(t.Weekday()) + 6) % 7) // Monday is 0
		c.columns["day_of_month"][i] = float32(t.Day())
		c.columns["day_of_year"][i] = float32(t.YearDay())
		c.columns["week_of_year"][i] = float32(week)
	}
	return c
}

// lag maps every step of the calendar to the step at the same clock time a number of days
// earlier.
type lag struct {
	via []int32
	// stretches are the ranges of steps in which the distance to the earlier step is
	// constant.
	stretches []stretch
}

// stretch is a range of steps with via[i] = i+shift.
type stretch struct{ from, to, shift int }

// lag returns the lag for the given number of days, or nil if the distance is always
// days·StepsPerDay steps. If the clock time does not exist on the earlier day, package time
// replaces it with the time an hour later. Steps before the span are negative.
func (c *calendar) lag(days int) *lag {
	if c.steady {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lags[days]; l != nil {
		return l
	}
	l := &lag{via: make([]int32, c.n)}
	for i := range l.via {
		t := c.d.Time(c.start, i).AddDate(0, 0, -days).Unix()
		l.via[i] = int32(math.Floor(float64(t-c.start) / float64(c.d.Seconds())))
		shift := int(l.via[i]) - i
		if n := len(l.stretches); n > 0 && l.stretches[n-1].shift == shift {
			l.stretches[n-1].to = i + 1
		} else {
			l.stretches = append(l.stretches, stretch{i, i + 1, shift})
		}
	}
	c.lags[days] = l
	return l
}

// runs appends to dst the runs of a meter's steps whose lagged load is within the given
// runs of load. Offset and back are the column's fields of the same names.
func (l *lag) runs(dst, load []span, offset, back int) []span {
	begin := len(dst)
	for _, s := range l.stretches {
		off := offset + s.shift - back // the distance from a step to its lagged load
		from, to := s.from-offset, s.to-offset
		for _, r := range load[sort.Search(len(load), func(i int) bool { return load[i].to-off > from }):] {
			if r.from-off >= to {
				break
			}
			r = span{max(r.from-off, from), min(r.to-off, to)}
			if n := len(dst); n > begin && dst[n-1].to == r.from {
				dst[n-1].to = r.to
			} else {
				dst = append(dst, r)
			}
		}
	}
	return dst
}
