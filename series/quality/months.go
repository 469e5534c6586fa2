package quality

import (
	"slices"
	"time"

	"loadstar/series"
)

// Month summarises a calendar month of one or several meters.
type Month struct {
	Month    string `json:"month"`    // such as 2026-03
	Readings int    `json:"readings"` // steps with a reading
	Missing  int    `json:"missing"`  // steps without a reading, between a meter's first and last reading
	// Longest is the longest gap of a meter within the month, in steps.
	Longest int `json:"longest_gap"`
	// Mean and Peak are the mean and the highest reading in kW, or nil if there is none.
	Mean *float64 `json:"mean_kw"`
	Peak *float64 `json:"peak_kw"`
	Days []Day    `json:"days"` // all days of the month

	sum float64
}

// Day summarises a day of one or several meters.
type Day struct {
	Readings int      `json:"readings"`
	Missing  int      `json:"missing"`
	Mean     *float64 `json:"mean_kw"` // nil if there is no reading

	sum float64
}

// Months summarises the months of a dataset on its clock. If which is not negative, only the
// meter with this index is included.
func Months(d *series.Dataset, which int) []Month {
	from, to := d.Span()
	if which >= 0 {
		m := d.Meter(which)
		from, to = m.Start, m.Start+int64(len(m.Load))*d.Seconds()
	}
	if to <= from {
		return nil
	}
	// Converting times to local time is slow, so it is done once for all meters.
	at := make([]struct{ month, day int32 }, (to-from)/d.Seconds())
	var out []Month
	var year int
	var month time.Month
	for i := range at {
		t := d.Time(from, i)
		if y, m, _ := t.Date(); len(out) == 0 || y != year || m != month {
			year, month = y, m
			last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
			out = append(out, Month{Month: t.Format("2006-01"), Days: make([]Day, last)})
		}
		at[i].month, at[i].day = int32(len(out)-1), int32(t.Day()-1)
	}
	for i := range d.Len() {
		if which >= 0 && i != which {
			continue
		}
		m := d.Meter(i)
		present := func(v float32) bool { return !series.Missing(v) }
		first := slices.IndexFunc(m.Load, present)
		if first < 0 {
			continue
		}
		load := m.Load
		for series.Missing(load[len(load)-1]) {
			load = load[:len(load)-1]
		}
		offset := int((m.Start - from) / d.Seconds())
		gap, gapMonth := 0, int32(-1)
		for j := first; j < len(load); j++ {
			x := at[offset+j]
			month := &out[x.month]
			if x.month != gapMonth {
				gap, gapMonth = 0, x.month
			}
			if !present(load[j]) {
				gap++
				month.Longest = max(month.Longest, gap)
				month.Missing++
				month.Days[x.day].Missing++
				continue
			}
			gap = 0
			month.add(int(x.day), float64(load[j]))
		}
	}
	for i := range out {
		m := &out[i]
		m.Mean = mean(m.sum, m.Readings)
		for j := range m.Days {
			m.Days[j].Mean = mean(m.Days[j].sum, m.Days[j].Readings)
		}
	}
	return out
}

func (m *Month) add(day int, v float64) {
	m.Readings++
	m.sum += v
	m.Days[day].Readings++
	m.Days[day].sum += v
	if m.Peak == nil {
		m.Peak = &v
	}
	*m.Peak = max(*m.Peak, v)
}

func mean(sum float64, n int) *float64 {
	if n == 0 {
		return nil
	}
	v := sum / float64(n)
	return &v
}
