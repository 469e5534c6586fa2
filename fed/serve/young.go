package serve

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// A young model reads rows of features and makes forecasts for a client with as little as a day
// of readings. It stores nothing about the client, because it has no personal layers, scales
// loads by the last days before each forecast, and sets inputs without data to 0. It makes
// hourly forecasts. Readings with shorter steps are averaged over hours that end at the cutoff,
// and the forecasts are then divided into steps.

const (
	// youngWindow is the number of hours before a forecast by which loads are scaled.
	youngWindow = 30 * 24
	// youngLeast is the minimum number of hours from the first reading to the cutoff for a
	// young model: a day whose first hours may be missing. youngGaps is the largest share of
	// these hours, up to a week, that may be missing. youngFill is the largest number of hours
	// without a load at the end.
	youngLeast = 20
	youngGaps  = 1. / 3
	youngFill  = 24 / 4
)

// young contains the additional fields of a young model.
type young struct {
	weights []float32 // all weights of the model
	wider   func(days float64) float64
}

// newYoung returns a young model. The plan must be for hourly readings, and its personal layers
// must have no effect if they are 0. wider returns the factor by which intervals are widened if
// the readings of the last 30 days cover the given number of days.
func newYoung(name string, p *fed.Plan, shared []float32, k *kernel.Set, wider func(days float64) float64) (*Model, error) {
	m, err := NewModel(name, p, shared, k)
	if err != nil {
		return nil, err
	}
	if !recipe.Rows(p) || m.Step != time.Hour || m.levels == nil || m.Plan.Model.Horizon.Steps() != 1 {
		return nil, fmt.Errorf("model %s: a young model must have rows of features and forecast quantiles of the next hours", name)
	}
	w, err := m.join(make([]float32, m.Problem.Partition.PersonalLen()))
	m.young = &young{w, wider}
	return m, err
}

// Anyone returns the client that all clients of a young model share.
func (m *Model) Anyone() Client { return Client{Weights: m.young.weights} }

// Suits reports whether a young model can make forecasts for readings with the given step.
func (m *Model) Suits(step time.Duration) bool { return step > 0 && step <= m.Step && m.Step%step == 0 }

// YoungProblem returns a problem with the inputs of hourly datasets. Inputs that the dataset
// lacks are missing at all times.
func YoungProblem(q *recipe.Problem, d *series.Dataset) (*recipe.Problem, error) {
	about := fields(d)
	w := series.Weather{Start: d.Weather.Start}
	n := 1
	for _, c := range d.Weather.Columns {
		n = len(c)
	}
	if len(d.Weather.Columns) == 0 {
		w.Start, _ = d.Span()
	}
	// A column named holiday replaces a country.
	for _, name := range []string{"temperature", "wind", "holiday"} {
		column := d.Weather.Column(name)
		if column == nil {
			column = slices.Repeat([]float32{float32(math.NaN())}, n)
		}
		w.Names, w.Columns = append(w.Names, name), append(w.Columns, column)
	}
	about.Weather = w
	var meters []series.Meter
	for i := range d.Len() {
		meters = append(meters, d.Meter(i))
	}
	padded, err := series.NewDataset(about, meters)
	if err != nil {
		return nil, err
	}
	p := *q // Open changes only what depends on the dataset
	return &p, p.Open(padded)
}

// YoungExamples returns the examples of a meter with hourly steps for a forecast after the step
// last, and the number of days of readings by which they are scaled. The examples are nil if
// the meter has no reading.
func YoungExamples(q *recipe.Problem, m series.Meter, last int) (series.Examples, float64) {
	from := max(last+1-youngWindow, 0)
	for from <= last && series.Missing(m.Load[from]) {
		from++
	}
	if from > last {
		return nil, 0
	}
	return q.Newest(m, q.ScalingOver(m, from, last+1), last), float64(last+1-from) / 24
}

// hourly contains the problems of a young model for tails. They are keyed by the offset of the
// cutoff from the start of its hour, in seconds.
type hourly struct {
	mu      sync.Mutex
	byPhase map[int64]*recipe.Problem
}

// youngFrame returns the frame of a young model.
func (m *Model) youngFrame(t *Tails) (*Frame, error) {
	if !m.Suits(t.data.Interval) {
		return nil, fmt.Errorf("model %s forecasts only steps that divide an hour, but the readings of %s are %s apart", m.Name, t.data.Name, t.data.Interval)
	}
	f := &Frame{model: m, tails: t, weather: m.worstWeather(t), hours: &hourly{byPhase: map[int64]*recipe.Problem{}}}
	_, err := f.hours.at(f, t.Cutoff)
	return f, err
}

const hourSeconds = 3600

// firstHour returns the start of the first complete hour in the tails, where hours are counted
// back from a cutoff.
func (t *Tails) firstHour(cutoff int64) int64 { return t.start + mod(cutoff-t.start, hourSeconds) }

// at returns the problem for a cutoff.
func (h *hourly) at(f *Frame, cutoff int64) (*recipe.Problem, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	phase := mod(cutoff, hourSeconds)
	if q := h.byPhase[phase]; q != nil {
		return q, nil
	}
	t := f.tails
	start, seconds := t.firstHour(cutoff), t.frame.Seconds()
	about := fields(t.frame)
	about.Interval = time.Hour
	about.Weather.Start = start
	about.Weather.Columns = nil
	for _, c := range t.frame.Weather.Columns {
		about.Weather.Columns = append(about.Weather.Columns, hoursOf(c[min(int((start-t.start)/seconds), len(c)):], int(hourSeconds/seconds)))
	}
	end := t.start + int64(t.n)*seconds
	span := series.Meter{Start: start, Load: make([]float32, (end-start)/hourSeconds), Static: make([]float32, len(about.StaticNames))}
	d, err := series.NewDataset(about, []series.Meter{span})
	if err != nil {
		return nil, err
	}
	q, err := YoungProblem(f.model.Problem, d)
	if err != nil {
		return nil, err
	}
	_, meter := q.FeatureBytes(d)
	q.LimitCache(meter) // features are used once
	h.byPhase[phase] = q
	return q, nil
}

// hoursOf returns the mean of each hour of n steps. An hour is missing if less than half of it
// is known, or if x ends before the hour does.
func hoursOf(x []float32, n int) []float32 {
	if n == 1 {
		return x
	}
	out := make([]float32, len(x)/n)
	for i := range out {
		sum, known := 0.0, 0
		for _, v := range x[i*n : (i+1)*n] {
			if !series.Missing(v) {
				sum += float64(v)
				known++
			}
		}
		if out[i] = float32(sum / float64(known)); 2*known < n {
			out[i] = float32(math.NaN())
		}
	}
	return out
}

// youngForecaster forecasts a meter's load with a young model.
type youngForecaster struct {
	frame  *Frame
	meter  series.Meter
	client Client

	load  []float32 // by hour up to the cutoff at
	at    int64
	hours []float64 // forecasts
}

func (f *youngForecaster) Name() string { return f.frame.model.Name }

func (f *youngForecaster) Step() time.Duration { return f.frame.tails.data.Interval }

func (f *youngForecaster) Span() (first, n int) { return f.frame.model.span(f.Step()) }

func (f *youngForecaster) Levels() (levels []float64, point int) {
	return f.frame.model.levels, f.frame.model.point
}

// known returns the loads of the hours up to a cutoff.
func (f *youngForecaster) known(cutoff int64) []float32 {
	if f.at == cutoff {
		return f.load
	}
	t := f.frame.tails
	seconds := t.data.Seconds()
	from, to := int((t.firstHour(cutoff)-f.meter.Start)/seconds), int((cutoff-f.meter.Start)/seconds)
	f.at, f.load = cutoff, nil
	if f.meter.Start == t.start && from <= to && to <= len(f.meter.Load) {
		f.load = hoursOf(f.meter.Load[from:to], int(hourSeconds/seconds))
	}
	return f.load
}

func (f *youngForecaster) Ready(cutoff int64) (series.Readiness, issue.Reason) {
	load := f.known(cutoff)
	first := slices.IndexFunc(load, func(v float32) bool { return !series.Missing(v) })
	switch {
	case load == nil:
		return series.Unready, issue.ModelFailed // the tails are for another cutoff
	case first < 0:
		return series.Unready, issue.NoReadings
	case len(load)-first < youngLeast:
		return series.Unready, issue.ShortHistory
	}
	load = load[max(first, len(load)-7*24):]
	missing, since := 0, 0
	for i, v := range load {
		if series.Missing(v) {
			missing++
		} else {
			since = len(load) - 1 - i
		}
	}
	switch {
	case missing == 0:
		return series.Complete, f.frame.weather
	case float64(missing) <= youngGaps*float64(len(load)) && since <= youngFill:
		return series.Filled, f.frame.weather
	}
	return series.Unready, issue.Gap
}

func (f *youngForecaster) Forecast(out []float64, cutoff int64) error {
	q, err := f.frame.hours.at(f.frame, cutoff)
	if err != nil {
		return err
	}
	m, load := f.frame.model, f.known(cutoff)
	hours := series.Meter{ID: f.meter.ID, Start: f.frame.tails.firstHour(cutoff), Load: load, Static: f.meter.Static}
	x, days := YoungExamples(q, hours, len(load)-1)
	if x == nil {
		return fmt.Errorf("meter %s: there is no reading before %d", f.meter.ID, cutoff)
	}
	width := len(m.levels)
	f.hours = slices.Grow(f.hours[:0], m.Plan.Model.Targets.Steps()*width)[:m.Plan.Model.Targets.Steps()*width]
	p := m.predictors.Get().(*forecast.Predictor)
	defer m.predictors.Put(p)
	if err := p.Predict(f.hours, f.client.Weights, x, len(load)-1); err != nil {
		return err
	}
	factor := m.young.wider(days)
	for row := range slices.Chunk(f.hours, width) {
		for i, v := range row {
			row[i] = row[m.point] + float64(factor*(v-row[m.point]))
		}
	}
	divide(out, f.hours, width, int(m.Step/f.Step()))
	return nil
}

// divide writes n steps for each hour. hours contains a row of values for each hour. The steps
// lie on a line through the hour's value at the middle of the hour, so their mean equals this
// value. The slope of the line is the smaller of the slopes to the two neighbouring hours. The
// line is level if these slopes differ in direction, or if the lines of two quantiles would
// cross. Each step therefore stays within the range of the neighbouring hours.
func divide(out, hours []float64, width, n int) {
	if n == 1 {
		copy(out, hours)
		return
	}
	count := len(hours) / width
	for h := range count {
		row := hours[h*width:][:width]
		slopes := make([]float64, width)
		for i, v := range row {
			if h == 0 || h+1 == count {
				break
			}
			before, after := v-hours[(h-1)*width+i], hours[(h+1)*width+i]-v
			if before*after > 0 {
				slopes[i] = math.Copysign(min(math.Abs(before), math.Abs(after)), before)
			}
		}
		for i := 1; i < width; i++ {
			if math.Abs(slopes[i]-slopes[i-1]) > 2*(row[i]-row[i-1]) {
				clear(slopes)
			}
		}
		for k := range n {
			at := (float64(k)+0.5)/float64(n) - 0.5
			for i, v := range row {
				out[(h*n+k)*width+i] = v + float64(slopes[i]*at)
			}
		}
	}
}
