package table

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Dates is the format of the dates in a table. The zero value is the ISO format, such as
// 2016-01-31, or 2016/01/31 with slashes.
type Dates struct {
	order     [3]byte // d, m and y in the order of the fields
	separator byte    // 0 if there is none
	short     bool    // the year has two digits
}

// ParseDates parses a pattern such as dd.mm.yyyy, mm/dd/yyyy, dd-mm-yy or yyyymmdd. The empty
// pattern and yyyy-mm-dd give the ISO format.
func ParseDates(pattern string) (Dates, error) {
	if pattern == "" || pattern == "yyyy-mm-dd" || pattern == "yyyy/mm/dd" {
		return Dates{}, nil
	}
	for _, d := range AllDates() {
		if d.String() == pattern {
			return d, nil
		}
	}
	return Dates{}, fmt.Errorf("date is %q; it must be a format such as yyyy-mm-dd, dd.mm.yyyy, mm/dd/yyyy, dd/mm/yy or yyyymmdd", pattern)
}

// AllDates returns all date formats, except the ISO format.
func AllDates() []Dates {
	var all []Dates
	for _, short := range []bool{false, true} {
		for _, order := range []string{"dmy", "mdy", "ymd"} {
			for _, sep := range []byte("./- ") {
				if order == "ymd" && !short && sep != '.' && sep != ' ' {
					continue // the ISO format
				}
				all = append(all, Dates{[3]byte([]byte(order)), sep, short})
			}
		}
	}
	return append(all, Dates{order: [3]byte{'y', 'm', 'd'}})
}

// String returns the pattern, such as dd.mm.yyyy.
func (d Dates) String() string {
	if d == (Dates{}) {
		return "yyyy-mm-dd"
	}
	var fields []string
	for _, c := range d.order {
		n := 2
		if c == 'y' && !d.short {
			n = 4
		}
		fields = append(fields, strings.Repeat(string(c), n))
	}
	if d.separator == 0 {
		return strings.Join(fields, "")
	}
	return strings.Join(fields, string(d.separator))
}

// Unix returns the time that the strings represent, taken as UTC, and false if they do not have
// this format. Clock is empty if day also contains the time of day.
func (d Dates) Unix(day, clock []byte) (unix int64, ok bool) {
	t, ok := d.scan(day)
	if !ok || t.day.year < firstYear || t.day.year > lastYear {
		return 0, false
	}
	if len(clock) > 0 {
		at, ok := scanClock(clock)
		if !ok || t.zoned || t.seconds != 0 {
			return 0, false
		}
		t.seconds = at.seconds
	}
	return utcMidnight(t.day) + t.seconds, true
}

// parse parses a date of this format, and a time of day if there is one.
func (d Dates) parse(s []byte) (label, error) {
	t, ok := d.scan(s)
	switch {
	case !ok && d == (Dates{}):
		return label{}, fmt.Errorf("time %q is not in the format 2016-01-31 23:00 or 2016-01-31T23:00:00, with or without an offset such as Z or +01:00; set date to the format of the dates, or use data init --date", Clip(s))
	case !ok:
		return label{}, fmt.Errorf("time %q is not in the format %s, with or without a time such as 23:00; correct date, or use data init --date", Clip(s), d)
	case t.day.year < firstYear || t.day.year > lastYear:
		return label{}, fmt.Errorf("the year of time %q is not from %d to %d", Clip(s), firstYear, lastYear)
	}
	return t, nil
}

// scan is like parse, but without error messages and without the limits on years.
func (d Dates) scan(s []byte) (t label, ok bool) {
	if d == (Dates{}) {
		return scanISO(s)
	}
	p := parser{s: s}
	p.date(d, &t)
	if p.at < len(s) && !p.bad {
		if c := p.peek(); c == ' ' || c == 'T' || c == ',' {
			for p.take(' ') || p.take(',') || p.take('T') {
			}
			p.clock(&t)
			p.rangeEnd(d)
		} else if d.separator == 0 && c >= '0' && c <= '9' {
			t.seconds = int64(3600*p.digits(2) + 60*p.digits(2)) // 202001312345
			if p.at < len(s) {
				t.seconds += int64(p.digits(2))
			}
			p.bad = p.bad || t.seconds > 86400
		}
	}
	return t, !(p.bad || p.at < len(s) || t.day.month < 1 || t.day.month > 12 || t.day.day < 1 || t.day.day > daysIn(t.day.year, t.day.month))
}

// date parses a date, without the time of day after it.
func (p *parser) date(d Dates, t *label) {
	for i, c := range d.order {
		if i > 0 && d.separator != 0 {
			p.one(d.separator, d.separator)
			if d.separator != ' ' {
				p.take(' ') // as in 1. 2. 2020
			}
		}
		switch {
		case c == 'y' && d.short:
			t.day.year = 2000 + p.digits(2)
		case c == 'y':
			t.day.year = p.digits(4)
		case c == 'm':
			t.day.month = p.upTo(2, d.separator != 0)
		default:
			t.day.day = p.upTo(2, d.separator != 0)
		}
	}
}

// scanClock parses a time of day, with or without a UTC offset.
func scanClock(s []byte) (t label, ok bool) {
	p := parser{s: s}
	p.clock(&t)
	p.rangeEnd(Dates{})
	return t, !p.bad && p.at == len(s)
}

// clock consumes a time of day: hours of one or two digits, minutes, seconds if there are
// any, AM or PM, and a UTC offset.
func (p *parser) clock(t *label) {
	hour := p.upTo(2, true)
	if c := p.peek(); c != 'h' || !p.take('h') {
		p.one(':', '.')
	}
	minute, second := p.digits(2), 0
	if p.peek() == ':' || p.peek() == '.' {
		p.at++
		second = p.digits(2)
		if p.take('.') || p.take(',') {
			p.one('0', '0')
			for p.take('0') {
			}
		}
	}
	mark := p.at
	p.take(' ')
	switch p.word("am", "a.m.", "a. m.", "pm", "p.m.", "p. m.") {
	case 0, 1, 2:
		p.bad = p.bad || hour < 1 || hour > 12
		hour %= 12
	case 3, 4, 5:
		p.bad = p.bad || hour < 1 || hour > 12
		hour = hour%12 + 12
	default:
		p.at = mark
	}
	t.seconds = int64(3600*hour + 60*minute + second)
	p.bad = p.bad || minute > 59 || second > 59 || t.seconds > 86400
	mark = p.at
	p.take(' ')
	switch c := p.peek(); {
	case c == 'Z':
		p.at++
		t.zoned = true
	case (c == '+' || c == '-') && p.at+1 < len(p.s) && p.s[p.at+1] != ' ':
		t.seconds -= p.offset()
		t.zoned = true
	default:
		p.at = mark
	}
}

// rangeEnd consumes the end of a period such as 00:00 - 00:15, which some exports write into
// one field. The start of the period is the row's time.
func (p *parser) rangeEnd(d Dates) {
	rest, ok := bytes.CutPrefix(p.s[min(p.at, len(p.s)):], []byte(" - "))
	if !ok || p.bad {
		return
	}
	end := parser{s: rest}
	var t label
	if end.clock(&t); end.bad || end.at < len(rest) {
		if d == (Dates{}) {
			return
		}
		if _, ok := d.scan(rest); !ok {
			return
		}
	}
	p.at = len(p.s)
}

// upTo consumes one to n digits, or exactly n if fewer is false.
func (p *parser) upTo(n int, fewer bool) int {
	if !fewer {
		return p.digits(n)
	}
	v := p.digits(1)
	for range n - 1 {
		if c := p.peek(); c >= '0' && c <= '9' {
			v = 10*v + int(c-'0')
			p.at++
		}
	}
	return v
}

// word consumes one of the words, in any case, and returns its index, or -1.
func (p *parser) word(words ...string) int {
	rest := p.s[min(p.at, len(p.s)):]
	i := slices.IndexFunc(words, func(w string) bool {
		return len(rest) >= len(w) && strings.EqualFold(string(rest[:len(w)]), w)
	})
	if i >= 0 {
		p.at += len(words[i])
	}
	return i
}
