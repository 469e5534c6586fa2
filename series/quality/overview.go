package quality

import (
	"time"

	"loadstar/internal/textfmt"
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
	o.Interval = textfmt.Duration(interval)
	for _, v := range m.Load {
		if !series.Missing(v) {
			o.present++
		}
	}
	o.steps += len(m.Load)
	o.Coverage = float64(o.present) / float64(o.steps)
	o.Faults.Add(m.Faults)
}
