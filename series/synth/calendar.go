package synth

import "time"

// day is a local calendar day.
type day struct {
	first, end int // quarter hours since the start
	week       week
	holiday    rank
	yearDay    int // 1 is January 1
}

// week is the part of the week that a day belongs to.
type week uint8

const (
	workday week = iota
	saturday
	sunday
)

// rank is the importance of a holiday. It determines which buildings close.
type rank uint8

const (
	noHoliday rank = iota
	minor          // public offices and schools close
	major          // all close except shops, restaurants, hotels and hospitals
	solemn         // nearly all close: Thanksgiving and Christmas
)

// calendar returns the local days that n quarter hours from start cover, at least partly. It
// also returns, for each quarter hour, its number within the local day.
func calendar(start time.Time, n int) ([]day, []uint8) {
	var days []day
	slot := make([]uint8, n)
	for q := range n {
		t := start.Add(time.Duration(q) * quarter)
		if yd := t.YearDay(); q == 0 || days[len(days)-1].yearDay != yd {
			d := day{first: q, holiday: holiday(t), yearDay: yd}
			switch t.Weekday() {
			case time.Saturday:
				d.week = saturday
			case time.Sunday:
				d.week = sunday
			}
			days = append(days, d)
		}
		days[len(days)-1].end = q + 1
		slot[q] = uint8(t.Hour()*4 + t.Minute()/15)
	}
	return days, slot
}

// Country is the code of the country whose holidays the buildings observe.
const Country = "US"

// holiday returns the rank of the holiday on a date. Holidays are the federal holidays of
// the United States, both on the actual date and on the weekday on which they are observed,
// and the Friday after Thanksgiving.
func holiday(t time.Time) rank {
	if r := fixedHoliday(t); r != noHoliday {
		return r
	}
	_, m, d := t.Date()
	nth := (d-1)/7 + 1
	switch t.Weekday() {
	case time.Monday:
		switch {
		case m == time.January && nth == 3, m == time.February && nth == 3, m == time.October && nth == 2:
			return minor
		case m == time.May && d > 24, m == time.September && nth == 1:
			return major
		}
		return fixedHoliday(t.AddDate(0, 0, -1))
	case time.Thursday:
		if m == time.November && nth == 4 {
			return solemn
		}
	case time.Friday:
		if m == time.November && d >= 23 && d <= 29 {
			return major
		}
		return fixedHoliday(t.AddDate(0, 0, 1))
	}
	return noHoliday
}

func fixedHoliday(t time.Time) rank {
	y, m, d := t.Date()
	switch {
	case m == time.January && d == 1, m == time.July && d == 4:
		return major
	case m == time.June && d == 19 && y >= 2021, m == time.November && d == 11:
		return minor
	case m == time.December && d == 25:
		return solemn
	}
	return noHoliday
}
