package serve

import (
	"fmt"
	"math"
	"slices"

	"loadstar/forecast/issue"
	"loadstar/series"
	"loadstar/series/feature"
)

const (
	daySeconds  = 24 * 3600
	weekSeconds = 7 * daySeconds
	// tailDays is the minimum number of days before a cutoff on which a forecast may depend.
	tailDays = feature.TailSeconds / daySeconds
)

// Tail returns the start of the readings that a forecast at a cutoff uses. The start is at
// least 44 days before the cutoff, and a multiple of 7 days since 1970. Earlier readings have
// no effect, so a forecast does not depend on the length of the history.
func Tail(cutoff int64) int64 { return feature.Tail(cutoff, 1) }

func mod(a, b int64) int64 {
	if a %= b; a < 0 {
		a += b
	}
	return a
}

// Tails contains the data that forecasts at a cutoff may use: the readings of all meters
// from [Tail] to the cutoff, and the weather. It is safe for concurrent use.
type Tails struct {
	Cutoff int64
	// Weather describes the origin of the values of each weather column after the cutoff, unless
	// they are a weather forecast. Before creating a frame, callers may add that the values were
	// observed.
	Weather map[string]issue.Reason

	data  *series.Dataset
	start int64
	n     int
	// frame contains the weather of the tails, and a meter that has the span of the tails but no
	// readings.
	frame *series.Dataset
}

// NewTails returns the tails of all meters of a dataset, with weather up to ahead steps after
// the cutoff. Each step after the dataset's newest weather value gets the newest value at the
// same time of day in the last 7 days or, if there is none, the mean at that time of day in the
// tail.
func NewTails(d *series.Dataset, cutoff int64, ahead int) (*Tails, error) {
	return newTails(d, cutoff, cutoff, ahead, nil)
}

// newTails returns the tails for all cutoffs from the given one up to end, which must have the
// same Tail. change, if not nil, is like [Replay.Weather].
func newTails(d *series.Dataset, cutoff, end int64, ahead int, change func(cutoff int64, name string, ahead []float32)) (*Tails, error) {
	seconds := d.Seconds()
	t := &Tails{Cutoff: cutoff, Weather: map[string]issue.Reason{}, data: d}
	t.start = feature.Tail(cutoff, seconds)
	t.n = int((end - t.start) / seconds)
	about := fields(d)
	about.Weather = series.Weather{Start: t.start, Names: d.Weather.Names}
	for i, name := range d.Weather.Names {
		all := series.Meter{Start: d.Weather.Start, Load: d.Weather.Columns[i]}
		column := all.Cut(t.start, t.start+int64(t.n+ahead)*seconds, seconds).Load
		if change != nil {
			column = slices.Clone(column)
			change(cutoff, name, column[(cutoff-t.start)/seconds:])
		}
		if name != "holiday" { // the calendar contains missing holidays
			var reason issue.Reason
			if column, reason = fill(column, t.n, d.StepsPerDay()); reason != "" {
				t.Weather[name] = reason
			}
		}
		about.Weather.Columns = append(about.Weather.Columns, column)
	}
	span := series.Meter{Start: t.start, Load: make([]float32, t.n), Static: make([]float32, len(d.StaticNames))}
	var err error
	t.frame, err = series.NewDataset(about, []series.Meter{span})
	return t, err
}

// Meter returns the tail of meter i of the dataset. The tail contains all steps from [Tail] to
// the cutoff; steps without a reading are NaN.
func (t *Tails) Meter(i int) (series.Meter, error) {
	m := t.data.Meter(i)
	if mod(m.Start-t.start, t.data.Seconds()) != 0 {
		return m, fmt.Errorf("meter %s: the cutoff %d is not at the start of a step of %s", m.ID, t.Cutoff, t.data.Interval)
	}
	seconds := t.data.Seconds()
	return m.Cut(t.start, t.start+int64(t.n)*seconds, seconds), nil
}

// fill replaces the missing values at the end of a weather column. If it replaces values at or
// after step first, it returns a reason that describes the replacement. The result may be the
// column itself.
func fill(column []float32, first, perDay int) (filled []float32, reason issue.Reason) {
	known := len(column)
	for known > 0 && series.Missing(column[known-1]) {
		known--
	}
	if known == len(column) {
		return column, ""
	}
	filled = slices.Clone(column)
	for i := known; i < len(filled); i++ {
		v, why := earlier(column[:known], i, perDay)
		if filled[i] = v; i >= first && rank(why) > rank(reason) {
			reason = why
		}
	}
	return filled, reason
}

// earlier returns a value for step i, which is after the end of a weather column.
func earlier(column []float32, i, perDay int) (float32, issue.Reason) {
	days := (i-len(column))/perDay + 1
	for k := days; k <= 7; k++ {
		if at := i - k*perDay; at >= 0 && !series.Missing(column[at]) {
			return column[at], issue.WeatherPersisted
		}
	}
	sum, n := 0.0, 0
	for at := i - days*perDay; at >= 0; at -= perDay {
		if !series.Missing(column[at]) {
			sum += float64(column[at])
			n++
		}
	}
	if n == 0 {
		return float32(math.NaN()), issue.WeatherMissing
	}
	return float32(sum / float64(n)), issue.WeatherClimatology
}
