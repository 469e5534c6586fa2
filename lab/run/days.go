package run

import (
	"iter"
	"slices"
	"time"
)

// Days accumulates the absolute errors of one client's forecasts by the day of their
// targets. The zero value is ready to use.
type Days struct{ days []dayErrors }

// dayErrors contains the absolute errors of the targets on one day of the dataset's clock.
type dayErrors struct {
	date int32 // days since 1970
	n    int32
	sum  float64
}

// Add adds an absolute error to the day of its target. Forecasts of several targets
// overlap, so the day may be before the newest one.
func (d *Days) Add(target time.Time, e float64) {
	year, month, date := target.Date()
	today := int32(time.Date(year, month, date, 0, 0, 0, 0, time.UTC).Unix() / (24 * 3600))
	i := len(d.days)
	for i > 0 && d.days[i-1].date > today {
		i--
	}
	if i == 0 || d.days[i-1].date != today {
		d.days = slices.Insert(d.days, i, dayErrors{date: today})
		i++
	}
	d.days[i-1].n++
	d.days[i-1].sum += e
}

// Rows yields the rows of the errors table of the client.
func (d *Days) Rows(client string) iter.Seq[Error] {
	return func(yield func(Error) bool) {
		for _, day := range d.days {
			date := time.Unix(int64(day.date)*24*3600, 0).UTC().Format(time.DateOnly)
			if !yield(Error{Client: client, Day: date, Targets: int(day.n), MAE: day.sum / float64(day.n)}) {
				return
			}
		}
	}
}
