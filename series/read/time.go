package read

import (
	"errors"
	"fmt"
	"time"

	"loadstar/series"
)

// clockReader converts the times of a table to instants. It caches the UTC offsets of the
// latest day, because most rows are on the same day as the row before.
type clockReader struct {
	clock *time.Location
	shift int64 // seconds from the start of the interval to its stamp

	day    date
	offset int64 // UTC offset at the start of the day
	after  int64 // UTC offset at the end of the day
}

// date is a day. The zero value is not a valid day.
type date struct{ year, month, day int }

// The range of plausible years. Other years come from a meter whose clock was never set,
// or from a mistake.
const firstYear, lastYear = 1971, 2199

// errNonexistent means that a local time is within the hour that clocks skip.
var errNonexistent = errors.New("this local time does not exist: clocks skip it")

func (t times) reader() *clockReader {
	r := &clockReader{clock: t.clock}
	if t.end {
		r.shift = int64(t.interval / time.Second)
	}
	return r
}

// instant returns the start of the interval that a time cell stands for.
func (r *clockReader) instant(c *cell) (series.Instant, error) {
	switch c.kind {
	case cellTime:
		t := time.Unix(c.integer, 0).UTC()
		if c.fraction {
			return series.Instant{}, fmt.Errorf("time %s has a fraction of a second; want whole seconds", t.Format(time.DateTime))
		}
		day := date{t.Year(), int(t.Month()), t.Day()}
		if day.year < firstYear || day.year > lastYear {
			return series.Instant{}, fmt.Errorf("the year of time %s is not from %d to %d", t.Format(time.DateTime), firstYear, lastYear)
		}
		if !c.local {
			return series.Instant{Unix: c.integer - r.shift}, nil
		}
		return r.local(day, int64(t.Hour()*3600+t.Minute()*60+t.Second()))
	case cellNumber, cellInteger:
		return series.Instant{}, fmt.Errorf("time %s is a number; want a date and time", c.name())
	case cellEmpty:
		return series.Instant{}, errors.New("the time is missing")
	}
	t, err := parseTime(c.text)
	if err != nil {
		return series.Instant{}, err
	}
	if t.zoned {
		return series.Instant{Unix: utcMidnight(t.day) + t.seconds - r.shift}, nil
	}
	return r.local(t.day, t.seconds)
}

// label is a parsed time. If it is zoned, seconds are relative to midnight UTC of the day,
// and may be negative or exceed a day.
type label struct {
	day     date
	seconds int64
	zoned   bool
}

// parseTime parses YYYY-MM-DD, T or a space, HH:MM, :SS, a fraction of zeros, and Z or an
// offset. Everything but the date is optional. Slashes may replace the dashes, and 24:00
// is the end of the day.
func parseTime(s []byte) (label, error) {
	p := parser{s: s}
	t := label{day: date{year: p.digits(4)}}
	sep := p.one('-', '/')
	t.day.month = p.digits(2)
	p.one(sep, sep)
	t.day.day = p.digits(2)
	if p.peek() == 'T' || p.peek() == ' ' {
		p.at++
		hour := p.digits(2)
		p.one(':', ':')
		minute, second := p.digits(2), 0
		if p.take(':') {
			second = p.digits(2)
			if p.take('.') || p.take(',') {
				p.one('0', '0')
				for p.take('0') {
				}
			}
		}
		t.seconds = int64(3600*hour + 60*minute + second)
		p.bad = p.bad || minute > 59 || second > 59 || t.seconds > 86400
		p.take(' ')
		switch p.peek() {
		case 'Z':
			p.at++
			t.zoned = true
		case '+', '-':
			t.seconds -= p.offset()
			t.zoned = true
		}
	}
	switch {
	case p.bad || p.at < len(s) || t.day.month < 1 || t.day.month > 12 || t.day.day < 1 || t.day.day > daysIn(t.day.year, t.day.month):
		return label{}, fmt.Errorf("time %q does not have the form 2016-01-31 23:00 or 2016-01-31T23:00:00, with or without an offset such as Z or +01:00", clip(s))
	case t.day.year < firstYear || t.day.year > lastYear:
		return label{}, fmt.Errorf("the year of time %q is not from %d to %d", clip(s), firstYear, lastYear)
	}
	return t, nil
}

// local converts a time on the table's clock to an instant. For end stamps it subtracts the
// interval from the instant, not from the label. After clocks were put forward at 02:00,
// the end stamp 03:00 therefore stands for the hour that starts at 01:00.
func (r *clockReader) local(day date, seconds int64) (series.Instant, error) {
	if day != r.day {
		r.enter(day)
	}
	t := utcMidnight(day) + seconds
	if r.offset == r.after {
		return series.Instant{Unix: t - r.offset - r.shift}, nil
	}
	// Clocks change on this day: the time may be valid with either offset, both or none.
	before, after := t-r.offset, t-r.after
	switch isBefore, isAfter := r.at(before) == r.offset, r.at(after) == r.after; {
	case isBefore && isAfter:
		return series.Instant{Unix: min(before, after) - r.shift, Again: max(before, after) - r.shift}, nil
	case isBefore:
		return series.Instant{Unix: before - r.shift}, nil
	case isAfter:
		return series.Instant{Unix: after - r.shift}, nil
	}
	return series.Instant{}, errNonexistent
}

// at returns the UTC offset of the table's clock at an instant.
func (r *clockReader) at(unix int64) int64 {
	_, offset := time.Unix(unix, 0).In(r.clock).Zone()
	return int64(offset)
}

// enter computes the UTC offsets for a day: two hours before its start, and two hours after
// its end. It does not use midnight, because some zones change clocks at midnight.
func (r *clockReader) enter(day date) {
	midnight := utcMidnight(day)
	r.day = day
	r.offset = r.at(midnight - r.at(midnight) - 2*3600)
	r.after = r.at(midnight - r.at(midnight) + 26*3600)
}

// utcMidnight returns the Unix time of a day's start in UTC.
func utcMidnight(d date) int64 {
	return time.Date(d.year, time.Month(d.month), d.day, 0, 0, 0, 0, time.UTC).Unix()
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// parser reads a text from left to right. It sets bad at the first mismatch.
type parser struct {
	s   []byte
	at  int
	bad bool
}

func (p *parser) peek() byte {
	if p.at >= len(p.s) {
		return 0
	}
	return p.s[p.at]
}

// take consumes the byte c if it is next.
func (p *parser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.at++
	return true
}

// one consumes the next byte, which must be one of two bytes, and returns it.
func (p *parser) one(a, b byte) byte {
	c := p.peek()
	if c != a && c != b || c == 0 {
		p.bad = true
		return 0
	}
	p.at++
	return c
}

// digits consumes exactly n digits and returns the number that they represent.
func (p *parser) digits(n int) int {
	v := 0
	for range n {
		c := p.peek()
		if c < '0' || c > '9' {
			p.bad = true
			return 0
		}
		v = 10*v + int(c-'0')
		p.at++
	}
	return v
}

// offset consumes +HH, +HHMM or +HH:MM and returns it in seconds.
func (p *parser) offset() int64 {
	sign := int64(1)
	if p.one('+', '-') == '-' {
		sign = -1
	}
	hour, minute := p.digits(2), 0
	if p.take(':') || p.at < len(p.s) {
		minute = p.digits(2)
	}
	p.bad = p.bad || hour > 14 || minute > 59
	return sign * int64(3600*hour+60*minute)
}
