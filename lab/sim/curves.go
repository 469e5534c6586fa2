package sim

import (
	"context"
	"math"
	"slices"

	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// peaks accumulates the errors of a client's forecasts at the highest load of each day.
type peaks struct {
	from   int    // first step of the test split
	at     []bool // for each step of the test split, whether it is the peak of its day
	errors metric.Point
	load   mean
	bias   float64 // bias of all forecasts
}

// begin finds the peaks of the days in a meter's test split.
func (p *peaks) begin(f *series.Framer, m series.Meter) {
	p.from = f.BeforeTest(m)
	p.at = make([]bool, len(m.Load)-p.from)
	for i := p.from; i < len(m.Load); {
		_, _, day := f.Time(m, i).Date()
		best, known := -1, 0
		for ; i < len(m.Load); i++ {
			if _, _, d := f.Time(m, i).Date(); d != day {
				break
			}
			if series.Missing(m.Load[i]) {
				continue
			}
			known++
			if best < 0 || m.Load[i] > m.Load[best] {
				best = i
			}
		}
		if 4*known >= 3*f.StepsPerDay() {
			p.at[best-p.from] = true
		}
	}
}

// add adds a forecast of the given step of the meter, if the step is a peak.
func (p *peaks) add(step int, f forecast.Forecast) error {
	if i := step - p.from; i < 0 || i >= len(p.at) || !p.at[i] {
		return nil
	}
	p.load.add(f.Actual)
	return p.errors.Add(f.Forecast, f.Actual, math.NaN())
}

func addPeaks(r *run.Results, all []detail) {
	for i := range all {
		p := &all[i].peaks
		r.Peaks = append(r.Peaks, run.Peak{
			Client: all[i].meter.ID, Bias: p.bias, Targets: p.errors.N(), Load: p.load.value(), PeakMAE: p.errors.MAE(), PeakBias: p.errors.Bias(),
		})
	}
}

func addCalibration(r *run.Results, all []detail, levels []float64) {
	for h := range 24 {
		for i, level := range levels {
			var share mean
			for k := range all {
				if n := all[k].hours[h].n; n > 0 {
					share.add(float64(all[k].below[h][i]) / float64(n))
				}
			}
			r.Calibration = append(r.Calibration, run.Calibration{Hour: h, Level: metric.LevelName(level), Clients: share.n, Share: share.value()})
		}
	}
}

// lastWeek returns the load at the same clock time a week before a step, or NaN.
func (d *detail) lastWeek(step int) float64 {
	if lag := d.frame.Lag(d.meter, step, 7); lag >= 0 && lag < len(d.meter.Load) {
		return float64(d.meter.Load[lag])
	}
	return math.NaN()
}

// beginCurves starts storing the curves of the client, with a row for each step of its test
// split.
func (d *detail) beginCurves(stride int) {
	d.leads = run.Leads{Targets: d.frame.Layout().Targets, Stride: stride}
	d.curves = make([]run.Curve, len(d.peaks.at))
	for i := range d.curves {
		at := d.peaks.from + i
		d.curves[i] = run.Curve{
			Client: d.meter.ID, Time: d.frame.Time(d.meter, at), Actual: run.Rounded(float64(d.meter.Load[at])), LastWeek: run.Rounded(d.lastWeek(at)),
			Near: run.Missing, NearLow: run.Missing, NearHigh: run.Missing, Far: run.Missing, FarLow: run.Missing, FarHigh: run.Missing,
		}
	}
}

// draw adds the forecast of a meter's step to the meter's curves, if these are kept. Lead is
// the number of the forecast's step, counted from 1.
func (d *detail) draw(step, lead int, forecast, low, high float64) {
	i := step - d.peaks.from
	if i < 0 || i >= len(d.curves) {
		return
	}
	c := &d.curves[i]
	if d.leads.Near(lead) {
		c.Near, c.NearLow, c.NearHigh = run.Rounded(forecast), run.Rounded(low), run.Rounded(high)
	}
	if d.leads.Far(lead) {
		c.Far, c.FarLow, c.FarHigh = run.Rounded(forecast), run.Rounded(low), run.Rounded(high)
	}
}

// drawExtremes scores the clients with the lowest, the median and the highest relative error
// again if their curves are missing, so reports can always show them.
func (s *ending) drawExtremes(ctx context.Context, scored []member, rows []run.Client, details []detail) error {
	var extremes []int
	for _, i := range run.Extremes(rows) {
		if details[i].curves == nil && !slices.Contains(extremes, i) {
			extremes = append(extremes, i)
		}
	}
	return s.pool.each(ctx, len(extremes), func(w *worker, k int) error {
		i := extremes[k]
		if err := s.final(ctx, w, i); err != nil {
			return err
		}
		var again detail // the errors of the client are already counted
		m := &scored[i]
		again.begin(s.setup.Problem.Framer, s.Dataset.Interval, m.meter, w.scorer.Levels(), false)
		again.beginCurves(s.Plan.Evaluate.Stride.Steps())
		if _, _, err := w.scorer.Serve(w.w, m.meter, m.windows, again.add); err != nil {
			return err
		}
		details[i].curves = again.curves
		return nil
	})
}
