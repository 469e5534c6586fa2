package report

import (
	"math"
	"slices"
	"time"

	"loadstar/lab/run"
	"loadstar/metric"
)

// excerpt is a part of one client's load and forecasts.
type excerpt struct {
	client         string
	start          int64 // Unix time in seconds
	interval       int64
	actual, before []float64
	leads          []lead
	// mae is the error of the forecasts. weekMAE is the error of repeating the load of the week
	// before. Both are means over the whole test split and all forecast steps.
	mae, weekMAE float64
}

// lead contains an excerpt's forecasts with the same lead time.
type lead struct {
	// steps and until are the shortest and the longest lead time in steps; 1 is the first
	// target.
	steps, until int
	values       []float64
	// low and high are P10 and P90. They are NaN if the model does not forecast them.
	low, high []float64
}

// curveExcerpts returns the curves of all clients for which a run has stored them.
func (r *Run) curveExcerpts(rows []run.Curve) []excerpt {
	leads := run.Leads{Targets: max(r.setting("model.targets"), 1), Stride: r.setting("evaluate.stride")}
	var to []excerpt
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Client == rows[0].Client {
			n++
		}
		x := excerpt{client: rows[0].Client, start: rows[0].Time.Unix(), interval: r.interval}
		near := lead{steps: 1, until: min(max(leads.Stride, 1), leads.Targets)}
		far := lead{steps: max(leads.Targets-max(leads.Stride, 1)+1, 1), until: leads.Targets}
		var errs, week metric.Point
		for _, c := range rows[:n] {
			x.actual, x.before = append(x.actual, c.Actual), append(x.before, c.LastWeek)
			near.values, near.low, near.high = append(near.values, c.Near), append(near.low, c.NearLow), append(near.high, c.NearHigh)
			far.values, far.low, far.high = append(far.values, c.Far), append(far.low, c.FarLow), append(far.high, c.FarHigh)
			if math.IsNaN(c.Actual) || math.IsNaN(c.Near) {
				continue
			}
			// Ignore the error, because the means omit values that cannot be scored, but the chart
			// shows them.
			_ = errs.Add(c.Near, c.Actual, math.NaN())
			if !math.IsNaN(c.LastWeek) {
				_ = week.Add(c.LastWeek, c.Actual, math.NaN())
			}
		}
		x.mae, x.weekMAE = errs.MAE(), week.MAE()
		x.leads = []lead{near}
		if leads.HasFar() {
			x.leads = append(x.leads, far)
		}
		to = append(to, x)
		rows = rows[n:]
	}
	return to
}

const (
	excerptLength = 14 * 24 * time.Hour
	excerptPoints = 1400 // more points than the width of a chart in pixels
	shownClients  = 6
)

// excerpts returns two weeks from the middle of each client's forecasts, for at most
// shownClients clients.
func excerpts(rows []run.Forecast) []excerpt {
	var to []excerpt
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Client == rows[0].Client {
			n++
		}
		to = append(to, cut(rows[:n]))
		rows = rows[n:]
	}
	if len(to) > shownClients {
		var some []excerpt
		for _, i := range thin(len(to), shownClients) {
			some = append(some, to[i])
		}
		to = some
	}
	return to
}

func cut(rows []run.Forecast) excerpt {
	s := excerpt{client: rows[0].Client}
	var errs, week metric.Point
	times := make([]int64, 0, len(rows))
	var cutoffs []int64
	distances := map[int64]bool{}
	for _, r := range rows {
		times = append(times, r.Time.Unix())
		cutoffs = append(cutoffs, r.Cutoff.Unix())
		distances[r.Time.Unix()-r.Cutoff.Unix()] = true
		// Ignore the error, because the means omit values that cannot be scored, but the
		// chart shows them.
		_ = errs.Add(r.Forecast, r.Actual, math.NaN())
		if !math.IsNaN(r.LastWeek) {
			_ = week.Add(r.LastWeek, r.Actual, math.NaN())
		}
	}
	s.mae, s.weekMAE = errs.MAE(), week.MAE()
	slices.Sort(times)
	times = slices.Compact(times)
	s.interval = closest(times, 3600)
	slices.Sort(cutoffs)
	stride := closest(slices.Compact(cutoffs), s.interval)
	points := min(int64(excerptLength/time.Second)/s.interval, excerptPoints)
	first, last := times[0], times[len(times)-1]
	s.start = first
	if spare := (last-first)/s.interval + 1 - points; spare > 0 {
		s.start += spare / 2 * s.interval
	}
	points = min(points, (last-s.start)/s.interval+1)
	gaps := func() []float64 {
		to := make([]float64, points)
		for i := range to {
			to[i] = math.NaN()
		}
		return to
	}
	s.actual, s.before = gaps(), gaps()
	// Show only the forecasts for the first and the last step. If forecasts are made only every
	// few steps, show that many steps of each forecast, so that there are no gaps.
	all := make([]int64, 0, len(distances))
	for d := range distances {
		all = append(all, d)
	}
	slices.Sort(all)
	shortest, longest := all[0], all[len(all)-1]
	ends := slices.Compact([]int64{shortest, max(longest-stride+s.interval, shortest)})
	for _, d := range ends {
		l := lead{steps: int((d-shortest)/s.interval) + 1, values: gaps(), low: gaps(), high: gaps()}
		l.until = int((min(d+stride-s.interval, longest)-shortest)/s.interval) + 1
		s.leads = append(s.leads, l)
	}
	for _, r := range rows {
		i := (r.Time.Unix() - s.start) / s.interval
		if r.Time.Unix() < s.start || i >= points {
			continue
		}
		s.actual[i], s.before[i] = r.Actual, r.LastWeek
		for k, d := range ends {
			if ahead := r.Time.Unix() - r.Cutoff.Unix(); ahead >= d && ahead < d+stride {
				s.leads[k].values[i], s.leads[k].low[i], s.leads[k].high[i] = r.Forecast, r.P10, r.P90
			}
		}
	}
	return s
}

// closest returns the smallest distance between two consecutive times. If there are fewer than
// two times, it returns the argument otherwise.
func closest(times []int64, otherwise int64) int64 {
	for i := 1; i < len(times); i++ {
		if d := times[i] - times[i-1]; i == 1 || d < otherwise {
			otherwise = d
		}
	}
	return otherwise
}
