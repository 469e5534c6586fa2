package outlook

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/forecast/issue"
	"loadstar/series"
)

// SumScore is the score of a quantity that is made of several steps or several clients.
type SumScore struct {
	N int `json:"n"` // of the forecasts that were scored
	// Clients is the number of clients.
	Clients int `json:"clients"`
	// MAE is in kWh for energies and in kW otherwise. RelativeMAE is relative to the error of
	// last week's loads, and Bias relative to the mean of what happened.
	MAE         float64 `json:"mae"`
	RelativeMAE float64 `json:"relative_mae"`
	Bias        float64 `json:"bias"`
	Coverage    float64 `json:"coverage"` // of P10 to P90
}

// String describes the score for a terminal.
func (s *SumScore) String() string {
	return fmt.Sprintf("error %.3f times that of last week, bias %+.1f %%, P10 to P90 covers %.1f %%", s.RelativeMAE, 100*s.Bias, 100*s.Coverage)
}

// errorSums adds up errors.
type errorSums struct {
	n, covered, inside int
	abs, signed, total float64
	both, week         float64 // where last week's load is known
}

func (e *errorSums) add(actual, forecast, low, high, week float64) {
	if math.IsNaN(actual) || math.IsNaN(forecast) {
		return
	}
	e.n++
	e.abs += math.Abs(forecast - actual)
	e.signed += forecast - actual
	e.total += actual
	if !math.IsNaN(low) && !math.IsNaN(high) {
		e.covered++
		if low <= actual && actual <= high {
			e.inside++
		}
	}
	if !math.IsNaN(week) {
		e.both += math.Abs(forecast - actual)
		e.week += math.Abs(week - actual)
	}
}

func (e *errorSums) score() *SumScore {
	if e.n == 0 {
		return nil
	}
	n := float64(e.n)
	return &SumScore{N: e.n, Clients: 1, MAE: e.abs / n, RelativeMAE: e.both / e.week, Bias: e.signed / e.total, Coverage: float64(e.inside) / float64(e.covered)}
}

// medianScore returns the medians over clients, but the mean of their coverage, because few
// days give a coarse share of each.
func medianScore(all []*ClientScore, of func(*ClientScore) *SumScore) *SumScore {
	var mae, relative, bias []float64
	out := &SumScore{}
	for _, c := range all {
		s := of(c)
		if s == nil || math.IsNaN(s.RelativeMAE) || math.IsNaN(s.Coverage) {
			continue
		}
		out.N += s.N
		out.Clients++
		mae, relative, bias = append(mae, s.MAE), append(relative, s.RelativeMAE), append(bias, s.Bias)
		out.Coverage += s.Coverage
	}
	if out.Clients == 0 {
		return nil
	}
	out.MAE, out.RelativeMAE, out.Bias = median(mae), median(relative), median(bias)
	out.Coverage /= float64(out.Clients)
	return out
}

func isMidnight(at int64, clock *time.Location) bool {
	t := time.Unix(at, 0).In(clock)
	return t.Hour() == 0 && t.Minute() == 0 && t.Second() == 0
}

// day returns the loads of the steps of a day from a cutoff on, and those at the same clock
// time a week before. A load that is missing is NaN.
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

// keep keeps the means of a forecast for the sum of all clients.
func (c *ClientScore) keep(f issue.Forecast) {
	means := make([]float64, c.h)
	for i := range means {
		means[i] = f.Rows[i].Mean
	}
	c.issued[f.Cutoff] = means
}

// addDay scores what a forecast that was issued at midnight says about the next 24 hours, if
// it is in the test part.
func (c *ClientScore) addDay(f issue.Forecast, d *series.Dataset) {
	c.keep(f)
	if f.Cutoff < c.first || len(f.Days) == 0 || f.Days[0].Start != f.Cutoff || f.Days[0].End != f.Cutoff+daySeconds {
		return
	}
	loads, week := c.day(f.Cutoff, d)
	hours := d.Interval.Hours()
	e := f.Days[0]
	c.energy.add(total(loads)*hours, e.Mean, e.P10, e.P90, total(week)*hours)
	c.peak.add(top(loads), f.Peak.P50, f.Peak.P10, f.Peak.P90, top(week))
}

func top(x []float64) float64 {
	highest := math.Inf(-1)
	for _, v := range x {
		highest = max(highest, v) // NaN stays NaN
	}
	return highest
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// sum scores the sum of all clients by step: that of a group with all of them as members, in
// the time in which all are scored. It returns nil if there is no such time.
func (b Backtest) sum(known *series.Dataset, all []*ClientScore) (*SumScore, error) {
	if len(all) < 2 {
		return nil, nil
	}
	first, begin := int64(0), int64(math.MaxInt64)
	for _, c := range all {
		first, begin = max(first, c.first), min(begin, c.meter.Start)
	}
	group, err := issue.NewGroup(issue.Config{Step: b.Dataset.Interval, Clock: b.Dataset.Clock, H: b.H})
	if err != nil {
		return nil, err
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
		f := group.Issue(load, members, at)
		if at < first || !isMidnight(at, b.Dataset.Clock) {
			continue
		}
		actual, week := make([]float64, b.Dataset.StepsPerDay()), make([]float64, b.Dataset.StepsPerDay())
		for _, c := range all {
			loads, before := c.day(at, b.Dataset)
			for i := range actual {
				actual[i] += loads[i]
				week[i] += before[i]
			}
		}
		for i, r := range f.Rows[:min(b.H, len(actual))] {
			e.add(actual[i], r.Mean, r.Values[0], r.Values[len(r.Values)-1], week[i])
		}
	}
	s := e.score()
	if s != nil {
		s.Clients = len(all)
	}
	return s, nil
}

// sumOf returns the sum of the clients' readings from a time on. A step that one of them lacks
// is missing.
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
