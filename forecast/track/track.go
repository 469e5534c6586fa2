// Package track sums up how good a client's forecasts were on each of the last days, by lead
// time. From these sums it computes scores over any number of days.
//
// The sums of a day can be computed again after readings of that day were corrected.
package track

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/forecast/issue"
	"loadstar/metric"
)

// Days is the number of days that a [Record] has sums for.
const Days = 40

const secondsPerDay = 24 * 60 * 60

// blockEnds are the longest leads of the blocks, in seconds. A longer lead counts in the
// last block.
var blockEnds = [...]int64{1 * 3600, 6 * 3600, 24 * 3600, 48 * 3600}

// Blocks is the number of blocks of leads: up to 1 hour, 6 hours, 24 hours, and longer.
const Blocks = len(blockEnds)

// BlockNames has the longest lead of each block.
var BlockNames = [Blocks]string{"1h", "6h", "24h", "48h"}

// sources are the sources by which rows are counted.
var sources = [...]issue.Source{issue.Model, issue.Generic, issue.Week, issue.Day, issue.Last, issue.None}

// Outcome is one row of an issued forecast, and the load that it forecast.
type Outcome struct {
	// Time is the start of the forecast step, and Cutoff the cutoff of the issue. Both are
	// in Unix seconds.
	Time, Cutoff int64
	// Load is the load of the step, or NaN if it is unknown. Then only the source is
	// counted.
	Load float64
	// Served has the forecast of each level as it was issued. It may be empty if the source
	// is None.
	Served []float64
	Source issue.Source
	// Model is the model's own point forecast, and Week the load at the same clock time the
	// week before. Each is NaN if it is unknown.
	Model, Week float64
}

// Record has the sums of a client's last days. It is not safe for concurrent use.
type Record struct {
	levels []float64
	point  int
	step   int64 // seconds
	newest int   // day
	begun  bool
	days   [Days][Blocks]bucket // by day modulo Days
}

// bucket has sums over the rows of one day and one block of leads.
type bucket struct {
	rows [len(sources)]uint32
	// n is the number of rows with a forecast and a load. served is the sum of absolute
	// errors.
	n      uint32
	served float64
	// withWeek counts the rows that also have last week's load, with the errors of both.
	withWeek         uint32
	servedWith, week float64
	// withModel counts the rows that have both last week's load and the model's forecast.
	withModel            uint32
	model, weekWithModel float64
	levels               []levelSums
}

// levelSums has the sums of one quantile.
type levelSums struct {
	pinball      float64
	below, above uint32 // loads below and above the quantile
}

// New returns an empty record for forecasts of the given levels, with the index of the point
// forecast, and steps of the given length.
func New(levels []float64, point int, step time.Duration) (*Record, error) {
	if _, err := metric.NewQuantiles(levels...); err != nil {
		return nil, fmt.Errorf("track: %w", err)
	}
	if len(levels) > maxLevels || point < 0 || point >= len(levels) || step < time.Second {
		return nil, fmt.Errorf("track: %d levels, point %d, step %v; want at most %d levels, one of them as the point, and a step of a second or longer", len(levels), point, step, maxLevels)
	}
	return &Record{levels: slices.Clone(levels), point: point, step: int64(step / time.Second)}, nil
}

// maxLevels limits the size of a record.
const maxLevels = 99

// DayOf returns the number of the UTC day that contains a time in Unix seconds. A row counts
// for the day of its forecast step.
func DayOf(unix int64) int { return int(unix / secondsPerDay) }

// Add counts an outcome. It ignores outcomes of days that are more than 40 days before the
// newest one, and rows that are not numbers although they have a source.
func (r *Record) Add(o Outcome) {
	day := DayOf(o.Time)
	if day < 0 || r.begun && day <= r.newest-Days {
		return
	}
	r.advance(day)
	b := &r.days[day%Days][r.block(o)]
	source := slices.Index(sources[:], o.Source)
	if source < 0 {
		source = len(sources) - 1
	}
	b.rows[source]++
	if len(o.Served) != len(r.levels) || !finite(o.Load) || slices.ContainsFunc(o.Served, func(v float64) bool { return !finite(v) }) {
		return
	}
	b.n++
	e := math.Abs(o.Load - o.Served[r.point])
	b.served += e
	if finite(o.Week) {
		week := math.Abs(o.Load - o.Week)
		b.withWeek++
		b.servedWith += e
		b.week += week
		if finite(o.Model) {
			b.withModel++
			b.model += math.Abs(o.Load - o.Model)
			b.weekWithModel += week
		}
	}
	if b.levels == nil {
		b.levels = make([]levelSums, len(r.levels))
	}
	for i, level := range r.levels {
		s := &b.levels[i]
		switch d := o.Load - o.Served[i]; {
		case d < 0:
			s.below++
			s.pinball += float64((level - 1) * d)
		case d > 0:
			s.above++
			s.pinball += float64(level * d)
		}
	}
}

// finite reports whether a value is a number whose differences and sums stay finite.
func finite(v float64) bool { return math.Abs(v) <= 1e30 }

// block returns the block of an outcome's lead, which is the time from the cutoff to the end
// of the step.
func (r *Record) block(o Outcome) int {
	lead := o.Time + r.step - o.Cutoff
	for i, end := range blockEnds {
		if lead <= end {
			return i
		}
	}
	return Blocks - 1
}

// advance makes a day the newest one, if it is newer.
func (r *Record) advance(day int) {
	if !r.begun {
		r.newest, r.begun = day, true
	}
	for d := max(r.newest+1, day-Days+1); d <= day; d++ {
		r.days[d%Days] = [Blocks]bucket{}
	}
	r.newest = max(r.newest, day)
}

// Reset forgets the sums of a day, so that the caller can add all outcomes of the day again.
func (r *Record) Reset(day int) {
	if r.begun && day >= 0 && day <= r.newest && day > r.newest-Days {
		r.days[day%Days] = [Blocks]bucket{}
	}
}

// Newest returns the newest day that the record has sums for, or false if it has none.
func (r *Record) Newest() (day int, ok bool) { return r.newest, r.begun }
