package sim

import (
	"math"
	"slices"
	"time"

	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/metric"
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
	days          run.Days
	keep          bool
	levels        [3]int // indices of P10, P50 and P90 in the model's levels, or -1
	others        []int  // indices of the other levels
	forecasts     []run.Forecast
	peaks         peaks
	below         [24][]uint32 // loads not above each quantile, by hour
	leads         run.Leads
	curves        []run.Curve // nil unless the client's curves are stored
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

// sampled reports whether the run's folder contains the forecasts of client i out of n. The
// sample has at most keep clients, evenly spaced.
func sampled(i, n, keep int) bool {
	keep = min(keep, n)
	return keep > 0 && (i == 0 || i*keep/n > (i-1)*keep/n)
}

// begin starts the statistics of a meter. Levels are the quantiles that the model forecasts.
func (d *detail) begin(f *series.Framer, interval time.Duration, m series.Meter, levels []float64, keep bool) {
	for h := range d.below {
		d.below[h] = make([]uint32, len(levels))
	}
	d.peaks.begin(f, m)
	d.frame, d.interval, d.meter, d.keep = f, interval, m, keep
	for i, level := range [...]float64{0.1, 0.5, 0.9} {
		d.levels[i] = slices.Index(levels, level)
	}
	for _, level := range run.OtherLevels(levels) {
		d.others = append(d.others, slices.Index(levels, level))
	}
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
	d.days.Add(f.Time, e)
	for i, v := range f.Levels {
		if f.Actual <= v {
			d.below[f.Time.Hour()][i]++
		}
	}
	at := int((f.Time.Unix() - d.meter.Start) / int64(d.interval/time.Second))
	if err := d.peaks.add(at, f); err != nil {
		return err
	}
	var p [3]float64
	for i, at := range d.levels {
		if p[i] = math.NaN(); at >= 0 {
			p[i] = f.Levels[at]
		}
	}
	d.draw(at, step+1, f.Forecast, p[0], p[2])
	if !d.keep {
		return nil
	}
	before := d.lastWeek(at)
	others := make([]float64, len(d.others))
	for i, at := range d.others {
		others[i] = f.Levels[at]
	}
	d.forecasts = append(d.forecasts, run.Forecast{
		Client: f.Client, Cutoff: f.Cutoff, Time: f.Time, Actual: f.Actual, Forecast: f.Forecast, LastWeek: before,
		P10: p[0], P50: p[1], P90: p[2], Levels: others,
	})
	return nil
}

// addQuantiles adds the scores of quantiles to a row of the clients table. It returns all
// scores of the client.
func addQuantiles(row *run.Client, s *forecast.ClientScore) metric.Scores {
	of := func(q *metric.Quantiles) (coverage, pinball float64) {
		if q == nil {
			return math.NaN(), math.NaN()
		}
		coverage, _ = q.Scores().Get("coverage") // Scores always has it
		return coverage, q.Loss()
	}
	row.Coverage, row.Pinball = of(s.Quantiles)
	row.CalibratedCoverage, row.CalibratedPinball = of(s.Calibrated)
	all := append(s.Overall.Scores(), metric.Score{Name: "relative_mae_model", Value: row.ModelRelativeMAE})
	if s.Quantiles == nil {
		return all
	}
	served := s.Calibrated
	if served == nil {
		served = s.Quantiles
	}
	losses, shares := served.Losses(), served.Shares()
	for i := range losses {
		row.Levels = append(row.Levels, losses[i], shares[i])
	}
	return append(all,
		metric.Score{Name: "coverage", Value: row.Coverage}, metric.Score{Name: "coverage_calibrated", Value: row.CalibratedCoverage},
		metric.Score{Name: "pinball", Value: row.Pinball}, metric.Score{Name: "pinball_calibrated", Value: row.CalibratedPinball})
}

// combine returns the tables that are computed from the details of all clients.
func combine(all []detail) (r run.Results) {
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
		r.Forecasts = append(r.Forecasts, d.forecasts...)
		r.Curves = append(r.Curves, d.curves...)
	}
	for h, m := range hours {
		r.Profile = append(r.Profile, run.Profile{By: "hour", At: h, Clients: m.n, NMAE: m.value()})
	}
	for s, m := range steps {
		r.Profile = append(r.Profile, run.Profile{By: "step", At: s + 1, Clients: m.n, NMAE: m.value()})
	}
	r.Errors = func(yield func(run.Error) bool) {
		for i := range all {
			for row := range all[i].days.Rows(all[i].meter.ID) {
				if !yield(row) {
					return
				}
			}
		}
	}
	return r
}
