package outlook

import (
	"math"
	"testing"
	"time"

	"loadstar/forecast/issue"
	"loadstar/internal/testkit"
	"loadstar/series"
)

// TestRowsWithoutForecast checks that steps without a forecast do not lower the error or the
// coverage.
func TestRowsWithoutForecast(t *testing.T) {
	d, err := series.NewDataset(series.Dataset{Name: "one", Interval: time.Hour, Clock: time.UTC}, []series.Meter{{ID: "a", Load: make([]float32, 24*21)}})
	testkit.Must(t, err)
	frame, err := series.NewFramer(d, series.Layout{Lookback: 1, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}}}, series.Split{Train: 0.5, Validation: 0.1})
	testkit.Must(t, err)
	score := func(rows ...issue.Row) *ClientScore {
		c := &ClientScore{meter: d.Meter(0), frame: frame, h: len(rows), sources: map[issue.Source]int{}, reasons: map[issue.Reason]int{}}
		c.add(issue.Forecast{Cutoff: d.Meter(0).Start + 24*14*3600, Rows: rows}, 3600)
		return c
	}
	nan := math.NaN()
	none := issue.Row{Values: []float64{nan, nan, nan}, Source: issue.None, Reason: issue.NoReadings}
	good := issue.Row{Values: []float64{-1, 2, 3}, Source: issue.Model} // the load is 0
	c := score(good, none, none, none)
	c.finish()
	if c.Rows != 4 || c.MAE != 2 || c.Coverage != 1 || c.Model != 0.25 {
		t.Errorf("the scores are %+v", c)
	}
	if n := score(none, none).forecasts(); n != 0 {
		t.Errorf("%d rows without a forecast count as forecasts", n)
	}
}
