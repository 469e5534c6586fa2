package issue

import "time"

// clock finds the times that have the same clock time on earlier days.
type clock struct {
	location *time.Location
	// The clock does not change in [from, to), in Unix seconds.
	from, to int64
}

// back returns the time with the same clock time the given number of days earlier. If this
// clock time does not exist on that day, it returns the time an hour later.
func (c *clock) back(at int64, days int) int64 {
	before := at - int64(days)*86400
	if c.from <= before && at < c.to {
		return before
	}
	t := time.Unix(at, 0).In(c.location)
	begin, end := t.ZoneBounds()
	c.from, c.to = -1<<62, 1<<62
	if !begin.IsZero() {
		c.from = begin.Unix()
	}
	if !end.IsZero() {
		c.to = end.Unix()
	}
	if c.from <= before {
		return before
	}
	return t.AddDate(0, 0, -days).Unix()
}

// day returns the number of the local day of a time.
func (c *clock) day(at int64) int {
	y, m, d := time.Unix(at, 0).In(c.location).Date()
	return int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400)
}
