package skill

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/forecast"
	"loadstar/lab/outlook"
	"loadstar/series"
)

// totals contains the series that the rivals of sums and days forecast: the loads of each
// client, their sum, and the energies and peaks of local days. They have no gaps, because a
// missing load is replaced by the load a week before. Scores omit such loads.
type totals struct {
	scores *outlook.Scores
	data   *series.Dataset
	hourly *series.Dataset
	sum    *series.Dataset // has one meter
	// energy and peak have a step for each local day, as if all days began at midnight UTC.
	energy, peak *series.Dataset
	// weather contains the lowest, mean and highest temperature by local day.
	weather map[int64][3]float64
	meters  map[string]int // in all datasets
}

const daySeconds = 24 * 3600

func newTotals(d *series.Dataset, s *outlook.Scores) (*totals, error) {
	t := &totals{scores: s, data: d, meters: map[string]int{}}
	var meters, energies, peaks []series.Meter
	begin, end := int64(math.MinInt64), int64(math.MaxInt64)
	for i := range d.Len() {
		m := d.Meter(i)
		if !slices.ContainsFunc(s.Clients, func(c outlook.ClientScore) bool { return c.ID == m.ID }) {
			continue
		}
		m.Load, m.Static = filled(m.Load, 7*d.StepsPerDay()), nil
		begin, end = max(begin, m.Start), min(end, m.Start+int64(len(m.Load))*d.Seconds())
		t.meters[m.ID] = len(meters)
		energy, peak := t.days(m)
		meters, energies, peaks = append(meters, m), append(energies, energy), append(peaks, peak)
	}
	sum := series.Meter{ID: "sum", Start: begin, Load: make([]float32, max(end-begin, 0)/d.Seconds())}
	for i := range sum.Load {
		total := 0.0
		for _, m := range meters {
			total += float64(m.Load[int((begin-m.Start)/d.Seconds())+i])
		}
		sum.Load[i] = float32(total)
	}
	about := series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Country: d.Country, Weather: d.Weather}
	var err error
	if t.hourly, err = series.NewDataset(about, meters); err != nil {
		return nil, err
	}
	if t.sum, err = series.NewDataset(about, []series.Meter{sum}); err != nil {
		return nil, err
	}
	about.Interval, about.Clock = daySeconds*time.Second, time.UTC
	about.Weather = t.dailyWeather()
	if t.energy, err = series.NewDataset(about, energies); err != nil {
		return nil, err
	}
	t.peak, err = series.NewDataset(about, peaks)
	return t, err
}

// filled returns the loads with each missing load replaced by the load a week before, or, in
// the first week, by the mean of all loads.
func filled(load []float32, week int) []float32 {
	out, sum, n := slices.Clone(load), 0.0, 0
	for _, v := range load {
		if !series.Missing(v) {
			sum += float64(v)
			n++
		}
	}
	for i, v := range out {
		switch {
		case !series.Missing(v):
		case i >= week:
			out[i] = out[i-week]
		default:
			out[i] = float32(sum / float64(max(n, 1)))
		}
	}
	return out
}

// localDay returns midnight UTC of the local day of a time.
func (t *totals) localDay(unix int64) int64 {
	y, m, d := time.Unix(unix, 0).In(t.data.Clock).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()
}

// days returns the energies and the peaks of a meter by local day. On days with 23 or 25 hours,
// the energy covers 24 hours. The first and the last day may be incomplete.
func (t *totals) days(m series.Meter) (energy, peak series.Meter) {
	start := t.localDay(m.Start)
	energy, peak = series.Meter{ID: m.ID, Start: start}, series.Meter{ID: m.ID, Start: start}
	sum, top, n := 0.0, math.Inf(-1), 0
	put := func() {
		energy.Load = append(energy.Load, float32(24*sum/float64(n)))
		peak.Load = append(peak.Load, float32(top))
	}
	before := start
	for i, v := range m.Load {
		if day := t.localDay(m.Start + int64(i)*t.data.Seconds()); day != before {
			put()
			before, sum, top, n = day, 0, math.Inf(-1), 0
		}
		sum, top, n = sum+float64(v), max(top, float64(v)), n+1
	}
	if n > 0 {
		put()
	}
	return energy, peak
}

// dailyWeather returns the mean weather of each local day. A baseline that forecasts the next
// step uses the weather of the step before it. Each day therefore has the weather of the next
// day, so that the target's weather is known, as in other forecasts.
func (t *totals) dailyWeather() (out series.Weather) {
	t.weather = map[int64][3]float64{}
	w := t.data.Weather
	for k, name := range w.Names {
		if name != "temperature" && name != "wind" {
			continue
		}
		var column []float32
		values, start := []float64(nil), t.localDay(w.Start)
		before := start
		put := func() {
			mean := math.NaN()
			if len(values) > 0 {
				sum := 0.0
				for _, v := range values {
					sum += v
				}
				mean = sum / float64(len(values))
				if name == "temperature" {
					t.weather[before] = [3]float64{slices.Min(values), mean, slices.Max(values)}
				}
			}
			column = append(column, float32(mean))
		}
		for i, v := range w.Columns[k] {
			if day := t.localDay(w.Start + int64(i)*t.data.Seconds()); day != before {
				put()
				before, values = day, values[:0]
			}
			if !series.Missing(v) {
				values = append(values, float64(v))
			}
		}
		put()
		out.Start = start - daySeconds
		out.Names, out.Columns = append(out.Names, name), append(out.Columns, column)
	}
	return out
}

// fitted is a baseline that is fitted to a meter.
type fitted struct {
	forecast.Baseline
	meter   series.Meter
	seconds int64
}

// fitBaseline fits a baseline to a meter of a dataset, to forecast a number of steps.
func fitBaseline(name string, d *series.Dataset, i, lookback, targets int) (*fitted, error) {
	layout := series.Layout{Lookback: lookback, Horizon: 1, Targets: targets, Inputs: []series.Input{{Name: "load"}}}
	frame, err := series.NewFramer(d, layout, series.DefaultSplit)
	if err != nil {
		return nil, err
	}
	b, err := forecast.NewBaseline(name)
	if err != nil {
		return nil, err
	}
	m := d.Meter(i)
	return &fitted{b, m, d.Seconds()}, b.Fit(forecast.Client{Frame: frame, Meter: m})
}

// from writes the forecasts of the steps starting at the given time.
func (f *fitted) from(out []float64, at int64) {
	if !f.Forecast(out, int((at-f.meter.Start)/f.seconds)-1) {
		for i := range out {
			out[i] = math.NaN()
		}
	}
}

// rival returns a baseline as a rival. It forecasts the sum by step, the daily energies and the
// daily peaks. Its hour of a peak is the hour with the highest forecast of the client's load.
func (t *totals) rival(name string) (r outlook.Rival, err error) {
	perDay := t.data.StepsPerDay()
	sum, err := fitBaseline(name, t.sum, 0, 7*perDay, perDay)
	if err != nil {
		return r, fmt.Errorf("%s of the sum: %w", name, err)
	}
	r.Sum = func(cutoff int64) []float64 {
		out := make([]float64, perDay)
		sum.from(out, cutoff)
		return out
	}
	var hourly, energies, peaks []*fitted
	for i := range t.hourly.Len() {
		for _, one := range []struct {
			to                *[]*fitted
			d                 *series.Dataset
			lookback, targets int
		}{{&hourly, t.hourly, 7 * perDay, perDay}, {&energies, t.energy, 28, 1}, {&peaks, t.peak, 28, 1}} {
			f, err := fitBaseline(name, one.d, i, one.lookback, one.targets)
			if err != nil {
				return r, fmt.Errorf("%s of meter %s: %w", name, t.hourly.Meter(i).ID, err)
			}
			*one.to = append(*one.to, f)
		}
	}
	r.Day = func(client string, cutoff int64) (energy, peak float64, at int) {
		i, day := t.meters[client], t.localDay(cutoff)
		var one [1]float64
		energies[i].from(one[:], day)
		energy = one[0]
		peaks[i].from(one[:], day)
		steps := make([]float64, perDay)
		hourly[i].from(steps, cutoff)
		return energy, one[0], slices.Index(steps, slices.Max(steps))
	}
	return r, nil
}
