package outlook

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/forecast/issue"
	"loadstar/lab/run"
	"loadstar/series"
)

// SumScore is the score of a quantity that combines several steps or several clients.
type SumScore struct {
	N int `json:"n"` // number of the scored forecasts
	// Clients is the number of clients.
	Clients int `json:"clients"`
	// MAE is in kWh for energies and in kW otherwise. RelativeMAE is relative to the error of
	// last week's loads. Bias is relative to the mean actual value.
	MAE         float64 `json:"mae"`
	RelativeMAE float64 `json:"relative_mae"`
	Bias        float64 `json:"bias"`
	Coverage    float64 `json:"coverage"` // share between P10 and P90, or 0 without these quantiles
	// RelativeMean is the mean of the relative MAE over clients, and RelativeMAE is the median.
	RelativeMean float64 `json:"relative_mae_mean"`
	// Above is the share of actual values above P90.
	Above float64 `json:"above_p90"`
	// Hit is the share of days whose highest step was forecast correctly. Near is the share of
	// days on which the forecast step is at most an hour from the highest one. They are 0 for
	// quantities other than peaks.
	Hit  float64 `json:"peak_hit,omitempty"`
	Near float64 `json:"peak_within_hour,omitempty"`
}

// String describes the score for a terminal.
func (s *SumScore) String() string {
	text := fmt.Sprintf("error %.3f times that of last week, bias %+.1f %%, P10 to P90 covers %.1f %%", s.RelativeMAE, 100*s.Bias, 100*s.Coverage)
	if s.Near > 0 {
		text += fmt.Sprintf(", %.1f %% are above P90, hour right for %.0f %%, within one for %.0f %%", 100*s.Above, 100*s.Hit, 100*s.Near)
	}
	return text
}

// Keep writes the scores of energies, sums and peaks into the folder of a run, where a report
// finds them.
func (s *Scores) Keep(dir string) error {
	var rows []run.Use
	for _, q := range []struct {
		name  string
		score *SumScore
	}{{"energy", s.Energy}, {"sum", s.Sum}, {"peak", s.Peak}} {
		if x := q.score; x != nil {
			rows = append(rows, run.Use{
				Dataset: s.Dataset, Quantity: q.name, Clients: x.Clients, N: x.N,
				MAE: x.MAE, RelativeMAE: x.RelativeMAE, RelativeMean: x.RelativeMean, Bias: x.Bias, Coverage: x.Coverage,
			})
		}
	}
	return run.WriteUses(dir, rows)
}

// errorSums adds up errors.
type errorSums struct {
	n, covered, inside, above, hit, near int
	abs, signed, total, week             float64
}

// add adds a forecast, unless the forecast, the actual value or last week's value is unknown.
// It reports whether it added the forecast.
func (e *errorSums) add(actual, forecast, low, high, week float64) bool {
	if math.IsNaN(actual + forecast + week) {
		return false
	}
	e.n++
	e.abs += math.Abs(forecast - actual)
	e.signed += forecast - actual
	e.total += actual
	e.week += math.Abs(week - actual)
	if !math.IsNaN(low) && !math.IsNaN(high) {
		e.covered++
		if low <= actual && actual <= high {
			e.inside++
		}
		if actual > high {
			e.above++
		}
	}
	return true
}

func (e *errorSums) score() *SumScore {
	if e.n == 0 {
		return nil
	}
	n := float64(e.n)
	covered := max(float64(e.covered), 1)
	return &SumScore{
		N: e.n, Clients: 1, MAE: e.abs / n, RelativeMAE: e.abs / e.week, RelativeMean: e.abs / e.week, Bias: e.signed / e.total,
		Coverage: float64(e.inside) / covered, Above: float64(e.above) / covered, Hit: float64(e.hit) / n, Near: float64(e.near) / n,
	}
}

// medianScore returns the medians over clients. Shares of days are means, because a client's
// share of only a few days is coarse.
func medianScore(all []*ClientScore, of func(*ClientScore) *SumScore) *SumScore {
	var mae, relative, bias []float64
	out := &SumScore{}
	for _, c := range all {
		s := of(c)
		if s == nil || math.IsNaN(s.RelativeMAE) {
			continue
		}
		out.N += s.N
		out.Clients++
		mae, relative, bias = append(mae, s.MAE), append(relative, s.RelativeMAE), append(bias, s.Bias)
		out.RelativeMean += s.RelativeMean
		out.Coverage += s.Coverage
		out.Above += s.Above
		out.Hit += s.Hit
		out.Near += s.Near
	}
	if out.Clients == 0 {
		return nil
	}
	out.MAE, out.RelativeMAE, out.Bias = median(mae), median(relative), median(bias)
	for _, mean := range []*float64{&out.RelativeMean, &out.Coverage, &out.Above, &out.Hit, &out.Near} {
		*mean /= float64(out.Clients)
	}
	return out
}

func isMidnight(at int64, clock *time.Location) bool {
	t := time.Unix(at, 0).In(clock)
	return t.Hour() == 0 && t.Minute() == 0 && t.Second() == 0
}

// day returns the loads in the 24 hours after a cutoff, and the loads at the same clock times a
// week before. Missing loads are NaN.
func (c *ClientScore) day(cutoff int64, d *series.Dataset) (loads, week []float64) {
	from := int((cutoff - c.meter.Start) / d.Seconds())
	at := func(i int) float64 {
		if i < 0 || i >= len(c.meter.Load) || series.Missing(c.meter.Load[i]) {
			return math.NaN()
		}
		return float64(c.meter.Load[i])
	}
	for i := from; i < from+d.StepsPerDay(); i++ {
		loads = append(loads, at(i))
		before := -1
		if i < len(c.meter.Load) {
			before = c.frame.Lag(c.meter, i, 7)
		}
		week = append(week, at(before))
	}
	return loads, week
}

// keep stores the means of a forecast for the sum of all clients.
func (c *ClientScore) keep(f issue.Forecast) {
	means := make([]float64, c.h)
	for i := range means {
		means[i] = f.Rows[i].Mean
	}
	c.issued[f.Cutoff] = means
}

// addDay scores the next 24 hours of a forecast that was issued at midnight, if they are in
// the test split.
func (c *ClientScore) addDay(f issue.Forecast, d *series.Dataset) {
	c.keep(f)
	if f.Cutoff < c.first || len(f.Days) == 0 || f.Days[0].Start != f.Cutoff || f.Days[0].End != f.Cutoff+daySeconds {
		return
	}
	loads, week := c.day(f.Cutoff, d)
	hours := d.Interval.Hours()
	e := f.Days[0]
	energy := c.energy.add(total(loads)*hours, e.Mean, e.P10, e.P90, total(week)*hours)
	highest, at := top(loads)
	before, _ := top(week)
	peak := c.peak.add(highest, f.Peak.P50, f.Peak.P10, f.Peak.P90, before)
	if peak {
		c.peak.hour(at, int((f.Peak.Time-f.Cutoff)/d.Seconds()), d)
	}
	if energy && peak {
		c.Days = append(c.Days, f.Cutoff)
	}
}

// Rival is another forecaster of the daily values and sums that a run forecasts.
type Rival struct {
	// Day returns the energy and the highest load of a client's 24 hours after a cutoff, in kWh
	// and kW, and the step of the highest load. Without a forecast, the energy and the load are
	// NaN, and the step is negative.
	Day func(client string, cutoff int64) (energy, peak float64, at int)
	// Sum returns the sums of all clients in the steps after a cutoff, in kW.
	Sum func(cutoff int64) []float64
}

// Rival returns the scores of other forecasts of the same clients and days, on the dataset of
// the scores.
func (s *Scores) Rival(d *series.Dataset, r Rival) (energy, sum, peak *SumScore) {
	all := make([]*ClientScore, len(s.Clients))
	unknown := math.NaN()
	for i, c := range s.Clients { // copies
		all[i] = &c
		c.energy, c.peak = errorSums{}, errorSums{}
		for _, cutoff := range c.Days {
			loads, week := c.day(cutoff, d)
			energy, peak, at := r.Day(c.ID, cutoff)
			hours := d.Interval.Hours()
			c.energy.add(total(loads)*hours, energy, unknown, unknown, total(week)*hours)
			highest, when := top(loads)
			before, _ := top(week)
			if c.peak.add(highest, peak, unknown, unknown, before) && at >= 0 {
				c.peak.hour(when, at, d)
			}
		}
		c.Energy, c.Peak = c.energy.score(), c.peak.score()
	}
	var e errorSums
	for _, cutoff := range s.SumDays {
		forecast := r.Sum(cutoff)
		actual, week := sumDay(all, cutoff, d)
		for i := range forecast {
			e.add(actual[i], forecast[i], unknown, unknown, week[i])
		}
	}
	if sum = e.score(); sum != nil {
		sum.Clients = len(all)
	}
	return medianScore(all, func(c *ClientScore) *SumScore { return c.Energy }), sum, medianScore(all, func(c *ClientScore) *SumScore { return c.Peak })
}

// sumDay returns the sums of the results of [ClientScore.day].
func sumDay(all []*ClientScore, cutoff int64, d *series.Dataset) (loads, week []float64) {
	loads, week = make([]float64, d.StepsPerDay()), make([]float64, d.StepsPerDay())
	for _, c := range all {
		one, before := c.day(cutoff, d)
		for i := range loads {
			loads[i] += one[i]
			week[i] += before[i]
		}
	}
	return loads, week
}

// hour counts a forecast of a peak's step if the step is correct, or at most an hour off.
func (e *errorSums) hour(at, forecast int, d *series.Dataset) {
	apart := time.Duration(max(at-forecast, forecast-at)) * d.Interval
	if apart == 0 {
		e.hit++
	}
	if apart <= time.Hour {
		e.near++
	}
}

// top returns the highest of the values and its position. The highest value is NaN if any of
// the values is.
func top(x []float64) (highest float64, at int) {
	highest = math.Inf(-1)
	for i, v := range x {
		if v > highest {
			at = i
		}
		highest = max(highest, v) // NaN remains NaN
	}
	return highest, at
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// sum scores the sum of all clients by step, computed as for a group of all clients, in the
// period in which all are scored. It returns nil if there is no such period.
func (b Backtest) sum(known *series.Dataset, all []*ClientScore) (s *SumScore, days []int64, err error) {
	if len(all) < 2 {
		return nil, nil, nil
	}
	first, begin, end := int64(0), int64(math.MaxInt64), int64(math.MaxInt64)
	for _, c := range all {
		first, begin, end = max(first, c.first), min(begin, c.meter.Start), min(end, endOf(b.Dataset, c.meter))
	}
	group, err := issue.NewGroup(issue.Config{Step: b.Dataset.Interval, Clock: b.Dataset.Clock, H: b.H})
	if err != nil {
		return nil, nil, err
	}
	var cutoffs []int64
	for at := range all[0].issued {
		if !slices.ContainsFunc(all, func(c *ClientScore) bool { return c.issued[at] == nil }) {
			cutoffs = append(cutoffs, at)
		}
	}
	slices.Sort(cutoffs)
	load := sumOf(known, all, begin)
	var e errorSums
	members := make([]issue.Forecast, len(all))
	for _, at := range cutoffs {
		for i, c := range all {
			members[i] = issue.Forecast{Client: c.ID, Rows: make([]issue.Row, b.H)}
			for k, mean := range c.issued[at] {
				members[i].Rows[k] = issue.Row{Mean: mean, Source: issue.Model, Quality: issue.OK}
			}
		}
		f, _ := group.Issue(load, members, at)
		if at < first || at+daySeconds > end || !isMidnight(at, b.Dataset.Clock) {
			continue
		}
		actual, week := sumDay(all, at, b.Dataset)
		for i, r := range f.Rows[:min(b.H, len(actual))] {
			e.add(actual[i], r.Mean, r.Values[0], r.Values[len(r.Values)-1], week[i])
		}
		days = append(days, at)
	}
	if s = e.score(); s != nil {
		s.Clients = len(all)
	}
	return s, days, nil
}

// sumOf returns the sum of the clients' readings from a time on. A step is missing if any
// client lacks it.
func sumOf(d *series.Dataset, all []*ClientScore, begin int64) series.Meter {
	byName := map[string]series.Meter{}
	end := int64(0)
	for i := range d.Len() {
		m := d.Meter(i)
		byName[m.ID] = m
		end = max(end, m.Start+int64(len(m.Load))*d.Seconds())
	}
	var meters []series.Meter
	for _, c := range all {
		m := byName[c.ID]
		load := make([]float32, (end-begin)/d.Seconds())
		for i := range load {
			load[i] = float32(math.NaN())
		}
		copy(load[(m.Start-begin)/d.Seconds():], m.Load)
		meters = append(meters, series.Meter{ID: m.ID, Start: begin, Load: load})
	}
	return issue.Sum("sum", meters)
}
