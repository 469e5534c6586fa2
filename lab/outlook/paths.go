package outlook

import (
	"fmt"
	"math"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
)

const (
	// mostPaths limits the scenarios of a forecast.
	mostPaths = 500
	// shapeDays is the number of days whose forecasts provide the scenarios. learnDays is the
	// number of earlier days whose forecasts determine intervals.
	learnDays, shapeDays = 14, 50
)

func (c *Config) checkPaths() error {
	switch {
	case c.Paths < 0 || c.Paths > mostPaths:
		return fmt.Errorf("%d scenarios are not possible; want 0 to %d", c.Paths, mostPaths)
	case c.Paths > 0 && len(c.Levels) == 1:
		return fmt.Errorf("scenarios need at least two quantiles, but there is only one")
	}
	return nil
}

// pathNames returns the names of the columns of scenarios.
func (a About) pathNames() (names []string) {
	for k := range a.Paths {
		names = append(names, fmt.Sprintf("path%d", k+1))
	}
	return names
}

// addPaths adds scenarios to the forecast of meter i. The shapes of the scenarios come from the
// forecasts that the client would have made at the same time on earlier days. The state of the
// forecast itself does not change, so its other numbers do not depend on scenarios.
func (p *producer) addPaths(f *issue.Forecast, i int, client, anyone *serve.Client, isNew bool) (shapeless bool, err error) {
	s, err := issue.NewState(p.states)
	if err != nil {
		return false, err
	}
	meter, seconds := p.c.Dataset.Meter(i), p.c.Dataset.Seconds()
	days := int64(learnDays + shapeDays)
	if isNew {
		days = heldDays // the layers were fitted to the earlier readings
	}
	if from := f.Cutoff - days*daySeconds; from > meter.Start {
		s.Advance(meter, from)
	}
	var earlier []issue.Forecast
	keep := func(e issue.Forecast) {
		if (f.Cutoff-e.Cutoff)%daySeconds == 0 {
			earlier = append(earlier, e)
		}
	}
	r := *p.replay
	r.Each, r.Other = keep, keep
	r.Also = func(cutoff int64) bool { return (f.Cutoff-cutoff)%daySeconds == 0 }
	if err := r.Advance(s, i, client, anyone, f.Cutoff); err != nil {
		return false, err
	}
	load := func(at int64) float64 {
		if step := (at - meter.Start) / seconds; step >= 0 && step < int64(len(meter.Load)) {
			return float64(meter.Load[step])
		}
		return math.NaN()
	}
	return !issue.AddPaths(f, earlier, load, p.c.Paths), nil
}
