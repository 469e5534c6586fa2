package sim

import (
	"math"
	"time"

	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/series"
)

// detail collects statistics of one client's test split that are not in its scores.
type detail struct {
	frame         *series.Framer
	interval      time.Duration
	meter         series.Meter
	level, spread float64
	hours         [24]mean
	steps         []mean
	load          mean
	keep          bool
	forecasts     []run.Forecast
}

type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) {
	m.sum += v
	m.n++
}

func (m mean) value() float64 { return m.sum / float64(m.n) }

// sampled reports whether the run's folder gets the forecasts of client i of n. The sample
// has at most keep clients, evenly spaced.
func sampled(i, n, keep int) bool {
	keep = min(keep, n)
	return keep > 0 && (i == 0 || i*keep/n > (i-1)*keep/n)
}

func (d *detail) begin(f *series.Framer, interval time.Duration, m series.Meter, keep bool) {
	d.frame, d.interval, d.meter, d.keep = f, interval, m, keep
	d.steps = make([]mean, f.Layout().Targets)
	var load, square mean
	for _, v := range m.Load[:f.Train(m)] {
		if !series.Missing(v) {
			load.add(float64(v))
		}
	}
	d.level = load.value()
	for _, v := range m.Load[:f.Train(m)] {
		if !series.Missing(v) {
			square.add((float64(v) - d.level) * (float64(v) - d.level))
		}
	}
	d.spread = math.Sqrt(square.value())
}

// add adds one forecast to the statistics.
func (d *detail) add(f forecast.Forecast) error {
	e := math.Abs(f.Forecast - f.Actual)
	step := int(f.Time.Sub(f.Cutoff)/d.interval) - d.frame.Layout().Horizon + 1
	d.hours[f.Time.Hour()].add(e)
	d.steps[step].add(e)
	d.load.add(math.Abs(f.Actual))
	if !d.keep {
		return nil
	}
	at := int((f.Time.Unix() - d.meter.Start) / int64(d.interval/time.Second))
	before := math.NaN()
	if lag := d.frame.Lag(d.meter, at, 7); lag >= 0 && lag < len(d.meter.Load) {
		before = float64(d.meter.Load[lag])
	}
	d.forecasts = append(d.forecasts, run.Forecast{
		Client: f.Client, Cutoff: f.Cutoff, Time: f.Time, Actual: f.Actual, Forecast: f.Forecast, LastWeek: before,
	})
	return nil
}

// combine returns the rows of the profile and forecasts tables, computed from the details
// of all clients.
func combine(all []detail) (profile []run.Profile, forecasts []run.Forecast) {
	var hours [24]mean
	steps := make([]mean, len(all[0].steps))
	relative := func(to *mean, of mean, d *detail) {
		if load := d.load.value(); of.n > 0 && load > 0 {
			to.add(of.value() / load)
		}
	}
	for i := range all {
		d := &all[i]
		for h := range hours {
			relative(&hours[h], d.hours[h], d)
		}
		for s := range steps {
			relative(&steps[s], d.steps[s], d)
		}
		forecasts = append(forecasts, d.forecasts...)
	}
	for h, m := range hours {
		profile = append(profile, run.Profile{By: "hour", At: h, Clients: m.n, NMAE: m.value()})
	}
	for s, m := range steps {
		profile = append(profile, run.Profile{By: "step", At: s + 1, Clients: m.n, NMAE: m.value()})
	}
	return profile, forecasts
}
