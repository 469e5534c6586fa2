package explain

import (
	"fmt"
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/series"
)

// Losses contains the training examples and forecasts that a plan loses because of missing
// readings. A forecast is due every 6 hours in the period that a meter's readings cover. It is
// lost if too many inputs of the model are missing.
type Losses struct {
	// Examples and Forecasts are the numbers without gaps.
	Examples      int64 `json:"examples"`
	LostExamples  int64 `json:"lost_examples"`
	Forecasts     int64 `json:"forecasts"`
	LostForecasts int64 `json:"lost_forecasts"`
}

// issueEvery is the time between the forecasts that are counted.
const issueEvery = 6 * time.Hour

// Gaps returns a plan's losses because of missing readings in a dataset.
func Gaps(p *fed.Plan, d *series.Dataset) (Losses, error) {
	q, err := recipe.Frame(p, d)
	if err != nil {
		return Losses{}, err
	}
	var sum Losses
	for i := range d.Len() {
		m := d.Meter(i)
		sum.add(lossesOf(q, d, m, q.Examples(m, nil)))
	}
	return sum, nil
}

// lossesOf returns the losses of one meter. all contains the meter's examples.
func lossesOf(q *recipe.Problem, d *series.Dataset, m series.Meter, all series.Examples) Losses {
	every := max(int(issueEvery/d.Interval), 1)
	count := func(all series.Examples) (examples, forecasts int64) {
		for last := every - 1; last < len(m.Load); last += every {
			if all.Ready(last) != series.Unready {
				forecasts++
			}
		}
		return int64(all.Len(series.Train)) * int64(all.PerOrigin()), forecasts
	}
	examples, forecasts := count(all)
	l := Losses{Examples: examples, Forecasts: forecasts}
	if !slices.ContainsFunc(m.Load, series.Missing) {
		return l
	}
	m.Load = slices.Clone(m.Load)
	for i, v := range m.Load {
		if series.Missing(v) {
			m.Load[i] = 0
		}
	}
	l.Examples, l.Forecasts = count(q.Examples(m, nil))
	l.LostExamples, l.LostForecasts = l.Examples-examples, l.Forecasts-forecasts
	return l
}

func (l *Losses) add(o Losses) {
	l.Examples += o.Examples
	l.LostExamples += o.LostExamples
	l.Forecasts += o.Forecasts
	l.LostForecasts += o.LostForecasts
}

// String describes the losses in a sentence.
func (l Losses) String() string {
	if l.LostExamples == 0 && l.LostForecasts == 0 {
		return "missing readings cost no training example and no forecast"
	}
	return fmt.Sprintf("missing readings cost %s of the training examples and %s of the forecasts (one every 6 hours)",
		share(l.LostExamples, l.Examples), share(l.LostForecasts, l.Forecasts))
}

// share formats a share in per cent, with more digits if it is small.
func share(part, whole int64) string {
	percent := 100 * float64(part) / float64(max(whole, 1))
	switch {
	case part == 0:
		return "none"
	case percent < 0.1:
		return "less than 0.1 %"
	case percent < 9.95:
		return fmt.Sprintf("%.1f %%", percent)
	}
	return fmt.Sprintf("%.0f %%", percent)
}
