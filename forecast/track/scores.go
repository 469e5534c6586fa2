package track

import (
	"math"

	"loadstar/forecast/issue"
	"loadstar/metric"
)

// Scores are the scores of a client over some days. Numbers that cannot be computed, because
// nothing was counted, are NaN.
type Scores struct {
	Days    int `json:"days"`    // over which the scores are computed
	Targets int `json:"targets"` // rows with a load
	// MAE is the mean absolute error of the served point forecasts in kW.
	MAE metric.Number `json:"mae"`
	// RelativeMAE is the MAE of the served forecasts divided by that of last week's load on
	// the same rows, Skill is 1 minus that, and ModelRelativeMAE is the same for the model's
	// own forecasts.
	RelativeMAE      metric.Number `json:"relative_mae"`
	Skill            metric.Number `json:"skill"`
	ModelRelativeMAE metric.Number `json:"model_relative_mae"`
	// Pinball is the mean pinball loss over all levels in kW, and Levels that of each level.
	Pinball metric.Number   `json:"pinball"`
	Levels  []metric.Number `json:"levels"`
	// Coverage is the share of loads within the outermost interval, which should be Nominal.
	Coverage metric.Number `json:"coverage"`
	Nominal  metric.Number `json:"nominal"`
	// Rows counts the issued rows by source, including those without a load. Fallback is
	// the share of rows that are not from a model.
	Rows     map[issue.Source]int `json:"rows"`
	Fallback metric.Number        `json:"fallback"`
}

// All selects all blocks of leads.
const All = -1

// Scores computes the scores over the given number of days up to and including a day, for
// one block of leads or for All.
func (r *Record) Scores(day, days, block int) Scores {
	var sum bucket
	sum.levels = make([]levelSums, len(r.levels))
	r.each(day, days, func(b *[Blocks]bucket) {
		for i := range b {
			if block == All || block == i {
				sum.add(&b[i])
			}
		}
	})
	return r.scores(&sum, days)
}

// Errors returns the mean absolute errors of the model's own forecasts and of last week's
// load on a day, over the rows that have both, and the number of these rows.
func (r *Record) Errors(day int) (model, week float64, rows int) {
	var sum bucket
	r.each(day, 1, func(b *[Blocks]bucket) {
		for i := range b {
			sum.add(&b[i])
		}
	})
	n := float64(sum.withModel)
	return sum.model / n, sum.weekWithModel / n, int(sum.withModel)
}

// each calls f with the sums of the given number of days until the given one, oldest first.
func (r *Record) each(day, days int, f func(*[Blocks]bucket)) {
	if !r.begun {
		return
	}
	for d := max(day-days+1, r.newest-Days+1, 0); d <= min(day, r.newest); d++ {
		f(&r.days[d%Days])
	}
}

func (b *bucket) add(o *bucket) {
	for i, n := range o.rows {
		b.rows[i] += n
	}
	b.n += o.n
	b.served += o.served
	b.withWeek += o.withWeek
	b.servedWith += o.servedWith
	b.week += o.week
	b.withModel += o.withModel
	b.model += o.model
	b.weekWithModel += o.weekWithModel
	for i := range min(len(b.levels), len(o.levels)) {
		b.levels[i].pinball += o.levels[i].pinball
		b.levels[i].below += o.levels[i].below
		b.levels[i].above += o.levels[i].above
	}
}

func (r *Record) scores(b *bucket, days int) Scores {
	n := float64(b.n)
	s := Scores{
		Days: days, Targets: int(b.n), MAE: ratio(b.served, n), RelativeMAE: ratio(b.servedWith, b.week),
		Skill: 1 - ratio(b.servedWith, b.week), ModelRelativeMAE: ratio(b.model, b.weekWithModel), Rows: map[issue.Source]int{},
	}
	var pinball float64
	for i := range b.levels {
		pinball += b.levels[i].pinball
		s.Levels = append(s.Levels, ratio(b.levels[i].pinball, n))
	}
	s.Pinball = ratio(pinball, float64(n*float64(len(r.levels))))
	last := len(r.levels) - 1
	s.Nominal = metric.Number(r.levels[last] - r.levels[0])
	s.Coverage = ratio(n-float64(b.levels[0].below)-float64(b.levels[last].above), n)
	var rows, fallback float64
	for i, count := range b.rows {
		if count == 0 {
			continue
		}
		s.Rows[sources[i]] = int(count)
		rows += float64(count)
		if sources[i] != issue.Model && sources[i] != issue.Generic {
			fallback += float64(count)
		}
	}
	s.Fallback = ratio(fallback, rows)
	return s
}

// ratio returns a/b, or NaN if b is 0.
func ratio(a, b float64) metric.Number {
	if b == 0 {
		return metric.Number(math.NaN())
	}
	return metric.Number(a / b)
}
