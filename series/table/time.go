package table

import (
	"errors"
	"fmt"
	"time"

	"loadstar/series"
)

// Clock converts the times of a table to instants. It caches the UTC offsets of the latest day,
// because most rows are on the same day as the previous row.
type Clock struct {
	zone  *time.Location
	shift int64 // seconds from the start of the interval to its label
	dates Dates
	iso   bool // whether dates is the ISO format

	text    [10]byte // the latest day as text in the ISO format
	textDay date

	day      date
	midnight int64 // midnight of the day in UTC
	offset   int64 // UTC offset at the start of the day
	after    int64 // UTC offset at the end of the day
}

// NewClock returns a clock for times in the given zone. Shift is the time from the start of
// an interval to its label. Dates is the format of the dates.
func NewClock(zone *time.Location, shift time.Duration, dates Dates) *Clock {
	return &Clock{zone: zone, shift: int64(shift / time.Second), dates: dates, iso: dates == (Dates{})}
}

// date is a day. The zero value is not a valid day.
type date struct{ year, month, day int }

// The range of plausible years. Other years come from a meter whose clock was never set,
// or from a mistake.
const firstYear, lastYear = 1971, 2199

// ErrNonexistent means that a local time is within the hour that clocks skip when they are put
// forward.
var ErrNonexistent = errors.New("this local time does not exist: clocks skip it")

// Instant returns the start of the interval that a time cell represents.
func (r *Clock) Instant(c *Cell) (series.Instant, error) {
	switch c.kind {
	case kindTime:
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
	case kindNumber, kindInteger:
		return series.Instant{}, fmt.Errorf("time %s is a number; want a date and time", c.Name())
	case kindEmpty:
		return series.Instant{}, errors.New("the time is missing; delete the line if it is a total")
	}
	if r.iso && len(c.text) > len(r.text) {
		if string(c.text[:len(r.text)]) == string(r.text[:]) {
			t := label{day: r.textDay}
			p := parser{s: c.text, at: len(r.text)}
			if p.isoClock(&t); !p.bad && p.at == len(p.s) {
				return r.at(t)
			}
		} else if t, ok := scanISO(c.text); ok && t.day.year >= firstYear && t.day.year <= lastYear {
			r.text, r.textDay = [10]byte(c.text), t.day
			return r.at(t)
		}
	}
	t, err := r.dates.parse(c.text)
	if err != nil {
		return series.Instant{}, err
	}
	return r.at(t)
}

// Join returns the start of the interval that a day and a time of day in two cells represent.
func (r *Clock) Join(day, at *Cell) (series.Instant, error) {
	if day.kind == kindEmpty || at.kind == kindEmpty {
		return series.Instant{}, errors.New("the date or the time is missing; delete the line if it is a total")
	}
	if day.kind != kindText || at.kind != kindText {
		return series.Instant{}, errors.New("a date and a time in two columns must be text")
	}
	t, err := r.dates.parse(day.text)
	if err == nil && (t.zoned || t.seconds != 0) {
		err = fmt.Errorf("date %q contains a time, but the time has its own column", Clip(day.text))
	}
	if err != nil {
		return series.Instant{}, err
	}
	clock, ok := scanClock(at.text)
	if !ok {
		return series.Instant{}, fmt.Errorf("time %q is not in the format 23:00, 23:00:00 or 11:00 PM", Clip(at.text))
	}
	t.seconds, t.zoned = clock.seconds, clock.zoned
	return r.at(t)
}

func (r *Clock) at(t label) (series.Instant, error) {
	if t.zoned {
		if t.day != r.day {
			r.enter(t.day)
		}
		return series.Instant{Unix: r.midnight + t.seconds - r.shift}, nil
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

// scanISO parses, in this order, YYYY-MM-DD, T or a space, HH:MM, :SS, a fraction of zeros, and
// Z or an offset. Everything but the date is optional. Slashes may replace the dashes, and
// 24:00 is the end of the day.
func scanISO(s []byte) (t label, ok bool) {
	p := parser{s: s}
	t.day.year = p.digits(4)
	sep := p.one('-', '/')
	t.day.month = p.digits(2)
	p.one(sep, sep)
	t.day.day = p.digits(2)
	p.isoClock(&t)
	return t, !(p.bad || p.at < len(s) || t.day.month < 1 || t.day.month > 12 || t.day.day < 1 || t.day.day > daysIn(t.day.year, t.day.month))
}

// isoClock consumes what follows the date in the ISO format.
func (p *parser) isoClock(t *label) {
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
}

// local converts a time on the table's clock to an instant. For labels at the end of an
// interval, it subtracts the interval from the instant, not from the label. After clocks were
// put forward at 02:00, the label 03:00 therefore means the hour that starts at 01:00.
func (r *Clock) local(day date, seconds int64) (series.Instant, error) {
	if day != r.day {
		r.enter(day)
	}
	t := r.midnight + seconds
	if r.offset == r.after {
		return series.Instant{Unix: t - r.offset - r.shift}, nil
	}
	// Clocks change on this day, so the time may be valid with either offset, both or neither.
	before, after := t-r.offset, t-r.after
	switch isBefore, isAfter := r.utcOffset(before) == r.offset, r.utcOffset(after) == r.after; {
	case isBefore && isAfter:
		return series.Instant{Unix: min(before, after) - r.shift, Again: max(before, after) - r.shift}, nil
	case isBefore:
		return series.Instant{Unix: before - r.shift}, nil
	case isAfter:
		return series.Instant{Unix: after - r.shift}, nil
	}
	return series.Instant{}, ErrNonexistent
}

// utcOffset returns the UTC offset of the table's clock at an instant.
func (r *Clock) utcOffset(unix int64) int64 {
	_, offset := time.Unix(unix, 0).In(r.zone).Zone()
	return int64(offset)
}

// enter computes the UTC offsets two hours before the start of a day and two hours after its
// end. It does not use midnight, because the clocks of some zones change at midnight.
func (r *Clock) enter(day date) {
	midnight := utcMidnight(day)
	r.day, r.midnight = day, midnight
	r.offset = r.utcOffset(midnight - r.utcOffset(midnight) - 2*3600)
	r.after = r.utcOffset(midnight - r.utcOffset(midnight) + 26*3600)
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

// parser reads a string from left to right. It sets bad at the first mismatch.
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

// offset consumes a UTC offset such as +HH, +HHMM or +HH:MM, and returns it in seconds.
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
