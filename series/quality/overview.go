package quality

import (
	"strings"
	"time"

	"loadstar/series"
)

// Overview contains the size and the time span of a dataset.
type Overview struct {
	Name      string        `json:"name"`
	Generated bool          `json:"generated,omitempty"`
	Meters    int           `json:"meters"`
	From      time.Time     `json:"from"`
	To        time.Time     `json:"to"`
	Interval  string        `json:"interval"`
	Coverage  float64       `json:"coverage"` // share of the steps that have a value
	Faults    series.Faults `json:"faults"`

	steps, present int
}

// Add adds a meter to the overview.
func (o *Overview) Add(m series.Meter, interval time.Duration, clock *time.Location) {
	from := time.Unix(m.Start, 0).In(clock)
	to := from.Add(time.Duration(len(m.Load)) * interval)
	if o.Meters == 0 || from.Before(o.From) {
		o.From = from
	}
	if o.Meters == 0 || to.After(o.To) {
		o.To = to
	}
	o.Meters++
	o.Interval = intervalName(interval)
	for _, v := range m.Load {
		if !series.Missing(v) {
			o.present++
		}
	}
	o.steps += len(m.Load)
	o.Coverage = float64(o.present) / float64(o.steps)
	o.Faults.Add(m.Faults)
}

// intervalName formats an interval without trailing zero units, such as 15m instead of
// 15m0s.
func intervalName(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
