package series

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Layout describes an example. Its inputs are the features at Lookback consecutive steps.
// Its targets are the load at Targets consecutive steps, the first of which is Horizon
// steps after the last input.
type Layout struct {
	Lookback int
	Horizon  int
	Targets  int
	Inputs   []Input
}

// Input is one feature, of which a window has a value for every step.
type Input struct {
	// Name is load, a calendar feature (time_of_day, hour, day_of_week, day_of_month,
	// day_of_year, week_of_year), a weather column, or a static value.
	Name string
	// AtTarget means that the value is taken Horizon steps later, at the target time. AtTarget
	// is for features that are known in advance, such as the calendar.
	AtTarget bool
	// Days, if not 0, means that the value is taken at the same clock time that many days
	// before the target. It is allowed only for load, and the value must be known when the
	// forecast is made.
	Days int
}

// ParseInput parses an input in the syntax of plans: NAME, NAME@target or load@target-24h.
func ParseInput(s string) (Input, error) {
	name, at, targeted := strings.Cut(s, "@")
	in := Input{Name: strings.TrimSpace(name), AtTarget: targeted}
	if in.Name == "" {
		return in, fmt.Errorf("input %q has no name", s)
	}
	if !targeted {
		return in, nil
	}
	lag, ok := strings.CutPrefix(strings.TrimSpace(at), "target")
	if !ok {
		return in, fmt.Errorf("input %q: after @ write target, or a lag such as target-24h", s)
	}
	if lag == "" {
		if in.Name == "load" {
			return in, fmt.Errorf("input %q is the value to forecast; for the value a day earlier write load@target-24h", s)
		}
		return in, nil
	}
	hours, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(lag, "-"), "h"))
	if err != nil || !strings.HasPrefix(lag, "-") || !strings.HasSuffix(lag, "h") || hours <= 0 || hours%24 != 0 {
		return in, fmt.Errorf("input %q: the lag must be whole days in hours, such as -24h or -168h", s)
	}
	if in.Name != "load" {
		return in, fmt.Errorf("input %q: only load can have a lag", s)
	}
	in.Days = hours / 24
	return in, nil
}

// String returns the input in the syntax of ParseInput.
func (in Input) String() string {
	switch {
	case in.Days > 0:
		return fmt.Sprintf("%s@target-%dh", in.Name, 24*in.Days)
	case in.AtTarget:
		return in.Name + "@target"
	}
	return in.Name
}

func (l Layout) validate(d *Dataset) error {
	if l.Lookback < 1 || l.Horizon < 1 || l.Targets < 1 {
		return fmt.Errorf("lookback %d, horizon %d and targets %d must be at least 1", l.Lookback, l.Horizon, l.Targets)
	}
	if len(l.Inputs) == 0 {
		return errors.New("a window needs at least one input")
	}
	for _, in := range l.Inputs {
		if in.Days > 0 && in.Days*d.StepsPerDay() < l.Horizon {
			return fmt.Errorf("input %s is not known yet when forecasting %d steps ahead", in, l.Horizon)
		}
	}
	return nil
}

// Part identifies one period of a meter's span, which is the training, validation or test
// split.
type Part int

// All is the whole span. Train, Validation and Test are the periods of a Split.
const (
	Train Part = iota
	Validation
	Test
	All
)

// Split divides a meter's span in time. The first part is for training, the second for
// validation, and the last for testing.
type Split struct {
	Train, Validation float64 // shares of the steps
	// Blocks means that the parts for training and validation end where a block of four weeks
	// ends. Blocks are the same for all meters, so shares and lengths that differ slightly
	// give the same parts. Otherwise a server could infer a reading from two parts that differ
	// only in that reading.
	Blocks bool
}

// block is the length of a block of a split, in seconds.
const block = 28 * 24 * 60 * 60

// DefaultSplit is the split in the papers that describe the models bose2023 and bose2024.
var DefaultSplit = Split{Train: 0.8, Validation: 0.1}

// cuts divides n steps, the first of which begins at the Unix time start. It returns the first
// step after the training split and the first step after the validation split.
func (s Split) cuts(start, seconds int64, n int) (train, validation int) {
	// Rounding a sum of shares such as 0.8 + 0.1 must not lose a step.
	const slack = 1e-9
	train, validation = int(s.Train*float64(n)+slack), int((s.Train+s.Validation)*float64(n)+slack)
	if s.Blocks {
		whole := func(steps int) int {
			end := start + int64(steps)*seconds
			return max(int((end-end%block-start)/seconds), 0)
		}
		train, validation = whole(train), whole(validation)
	}
	return train, validation
}

// Range contains the smallest and the largest value of an input.
type Range struct{ Low, High float32 }

// Ranges maps the names of inputs to their ranges.
type Ranges map[string]Range

// Merge widens the ranges to include another meter's ranges, so that a fleet can be scaled
// uniformly.
func (r Ranges) Merge(other Ranges) {
	for name, o := range other {
		if mine, ok := r[name]; ok {
			o = Range{min(mine.Low, o.Low), max(mine.High, o.High)}
		}
		r[name] = o
	}
}

// Framer makes the windows of a dataset's meters. It is safe for concurrent use.
type Framer struct {
	d        *Dataset
	layout   Layout
	split    Split
	calendar *calendar
	shared   map[string]*sharedColumn
}

// NewFramer returns a framer, or an error if the dataset lacks an input of the layout.
func NewFramer(d *Dataset, l Layout, s Split) (*Framer, error) {
	if err := l.validate(d); err != nil {
		return nil, err
	}
	if !(s.Train > 0 && s.Validation >= 0 && s.Train+s.Validation <= 1) {
		return nil, fmt.Errorf("a split of %g for training and %g for validation is not possible; want a training share above 0 and a sum of at most 1", s.Train, s.Validation)
	}
	f := &Framer{d: d, layout: l, split: s, calendar: newCalendar(d, l.Horizon+l.Targets), shared: map[string]*sharedColumn{}}
	for name, c := range f.calendar.columns {
		f.shared[name] = &sharedColumn{start: f.calendar.start, data: c}
	}
	for _, name := range d.Weather.Names {
		if c := d.Weather.Column(name); c != nil && f.shared[name] == nil {
			f.shared[name] = &sharedColumn{start: d.Weather.Start, data: c}
		}
	}
	for _, in := range l.Inputs {
		if !f.Known(in.Name) {
			return nil, fmt.Errorf("input %s: dataset %s has no %s; it has %s", in, d.Name, in.Name, strings.Join(f.names(), ", "))
		}
	}
	return f, nil
}

// names returns the names of the inputs that the dataset has.
func (f *Framer) names() []string {
	return slices.Concat([]string{"load"}, calendarNames, f.d.Weather.Names, f.d.StaticNames)
}

// Known reports whether the dataset has the input with the given name.
func (f *Framer) Known(name string) bool { return slices.Contains(f.names(), name) }

// Layout returns the layout of the windows.
func (f *Framer) Layout() Layout { return f.layout }

// column is the source of an input's values. The value at step i of the meter is
// data[i+offset], or data[via[i+offset]-back] if the column has a lag.
type column struct {
	data   []float32
	offset int
	shared *sharedColumn // the owner of data, or nil if data is the meter's load
	lag    *lag
	back   int
	fixed  float32 // the value if data is nil
	low    float32
	scale  float32
}

// at returns the column's value at step i, or NaN if there is none.
func (c *column) at(i int) float32 {
	if c.data == nil {
		return c.fixed
	}
	i += c.offset
	if c.lag != nil {
		if i < 0 || i >= len(c.lag.via) {
			return float32(math.NaN())
		}
		i = int(c.lag.via[i]) - c.back
	}
	if i < 0 || i >= len(c.data) {
		return float32(math.NaN())
	}
	return c.data[i]
}

// over returns the range of the column's values at the first n steps. It must not be called
// for columns with a lag.
func (c *column) over(n int) Range {
	from, to := max(c.offset, 0), min(n+c.offset, len(c.data))
	switch {
	case c.data == nil:
		return nowhere.over([]float32{c.fixed}) // the value is the same at every step
	case from >= to:
		return nowhere
	case c.shared != nil:
		return c.shared.over(from, to)
	}
	return nowhere.over(c.data[from:to])
}

// column returns the source of a meter's values for an input, without scaling.
func (f *Framer) column(m Meter, in Input) column {
	steps := func(start int64) int { return int((m.Start - start) / f.d.Seconds()) }
	ahead := 0
	if in.AtTarget {
		ahead = f.layout.Horizon
	}
	if in.Name == "load" {
		if in.Days == 0 {
			return column{data: m.Load}
		}
		if lag := f.calendar.lag(in.Days); lag != nil {
			return column{data: m.Load, offset: ahead + steps(f.calendar.start), lag: lag, back: steps(f.calendar.start)}
		}
		return column{data: m.Load, offset: ahead - in.Days*f.d.StepsPerDay()}
	}
	if s := f.shared[in.Name]; s != nil {
		return column{data: s.data, offset: ahead + steps(s.start), shared: s}
	}
	return column{fixed: m.Static[slices.Index(f.d.StaticNames, in.Name)]}
}

// Time returns the time at which a step of a meter starts, on the dataset's clock.
func (f *Framer) Time(m Meter, step int) time.Time { return f.d.Time(m.Start, step) }

// StepsPerDay returns the number of steps in 24 hours.
func (f *Framer) StepsPerDay() int { return f.d.StepsPerDay() }

// Train returns the number of steps in a meter's training split.
func (f *Framer) Train(m Meter) int {
	train, _ := f.cuts(m)
	return train
}

// cuts returns the first steps after a meter's training and validation splits.
func (f *Framer) cuts(m Meter) (train, validation int) {
	return f.split.cuts(m.Start, f.d.Seconds(), len(m.Load))
}

// Lag returns the step of a meter at the same clock time as the given step, but days earlier.
// Both steps may be outside the series, because the calendar extends Horizon and Targets steps
// beyond its end.
func (f *Framer) Lag(m Meter, step, days int) int {
	lag := f.calendar.lag(days)
	if lag == nil {
		return step - days*f.d.StepsPerDay()
	}
	offset := int((m.Start - f.calendar.start) / f.d.Seconds())
	if at := step + offset; at >= 0 && at < len(lag.via) {
		return int(lag.via[at]) - offset
	}
	return -1
}

// Value returns the unscaled value of the named input of a meter at a step, or NaN if it is
// missing.
func (f *Framer) Value(m Meter, name string, step int) float32 {
	c := f.column(m, Input{Name: name})
	return c.at(step)
}

// Ranges returns the ranges of a meter's inputs over the training split.
func (f *Framer) Ranges(m Meter) Ranges {
	r := make(Ranges, 1+len(f.layout.Inputs))
	train := f.Train(m)
	add := func(name string) {
		if _, done := r[name]; done {
			return
		}
		c := f.column(m, Input{Name: name})
		if o := c.over(train); o.Low <= o.High {
			r[name] = o
		}
	}
	add("load")
	for _, in := range f.layout.Inputs {
		add(in.Name)
	}
	return r
}

// Windows contains a meter's examples, each with all targets of its origin. Each example
// has complete inputs and targets. Only the origins of the examples are stored; Gather
// copies the values when they are needed.
type Windows struct {
	Origins
	columns []column
	target  column
}

var _ Examples = (*Windows)(nil)

// Windows finds a meter's examples. Ranges scale every input and the targets so that the
// ranges become 0 to 1. Inputs with an empty range become 0. If ranges is nil, nothing is
// scaled.
func (f *Framer) Windows(m Meter, ranges Ranges) *Windows {
	w := &Windows{Origins: f.noOrigins(m), columns: make([]column, 0, len(f.layout.Inputs)), target: column{data: m.Load, scale: 1}}
	scale := func(c *column, name string) {
		c.scale = 1
		if ranges != nil {
			r := ranges[name]
			c.low, c.scale = r.Low, 0
			if r.High > r.Low {
				c.scale = 1 / (r.High - r.Low)
			}
		}
		if c.data == nil {
			c.fixed = (c.fixed - c.low) * c.scale
		}
	}
	for _, in := range f.layout.Inputs {
		c := f.column(m, in)
		scale(&c, in.Name)
		w.columns = append(w.columns, c)
	}
	scale(&w.target, "load")
	w.find()
	return w
}

// Ready implements [Examples].
func (w *Windows) Ready(last int) Readiness {
	from := last - w.frame.layout.Lookback + 1
	if from < 0 || last >= len(w.target.data) {
		return Unready
	}
	for i := range w.columns {
		c := &w.columns[i]
		switch {
		case c.data == nil:
			if Missing(c.fixed) {
				return Unready
			}
		case c.lag != nil:
			for step := from; step <= last; step++ {
				if Missing(c.at(step)) {
					return Unready
				}
			}
		default:
			if from+c.offset < 0 || last+c.offset >= len(c.data) || slices.ContainsFunc(c.data[from+c.offset:last+1+c.offset], Missing) {
				return Unready
			}
		}
	}
	return Complete
}

// Inputs implements [Examples].
func (w *Windows) Inputs() int { return len(w.columns) * w.frame.layout.Lookback }

// PerOrigin returns 1.
func (*Windows) PerOrigin() int { return 1 }

// Gather implements [Examples]. The inputs of an example are ordered by step, then by input.
func (w *Windows) Gather(x, y []float32, at []Example) {
	width, lookback := len(w.columns), w.frame.layout.Lookback
	size := width * lookback
	x = x[:len(at)*size]
	for f := range w.columns {
		c := &w.columns[f]
		low, scale := c.low, c.scale
		to := f
		for _, e := range at {
			last := e.Last
			from := last - lookback + 1
			switch {
			case c.data == nil:
				for range lookback {
					x[to] = c.fixed
					to += width
				}
			case c.lag != nil:
				for t := range lookback {
					x[to] = (c.at(from+t) - low) * scale
					to += width
				}
			default:
				for _, v := range c.data[from+c.offset : last+1+c.offset] {
					x[to] = (v - low) * scale
					to += width
				}
			}
		}
	}
	w.gatherTargets(y, at)
}

// GatherColumns implements [Examples]. There is a row for each step and input.
func (w *Windows) GatherColumns(x []float32, stride int, y []float32, at []Example) {
	lookback := w.frame.layout.Lookback
	for f := range w.columns {
		c := &w.columns[f]
		low, scale := c.low, c.scale
		for t := range lookback {
			row := x[(t*len(w.columns)+f)*stride:][:len(at)]
			back := lookback - 1 - t
			switch {
			case c.data == nil:
				for e := range row {
					row[e] = c.fixed
				}
			case c.lag != nil:
				for e, x := range at {
					row[e] = (c.at(x.Last-back) - low) * scale
				}
			default:
				data := c.data
				for e, x := range at {
					row[e] = (data[x.Last-back+c.offset] - low) * scale
				}
			}
		}
	}
	w.gatherTargets(y, at)
}

func (w *Windows) gatherTargets(y []float32, at []Example) {
	if y == nil {
		return
	}
	horizon, targets := w.frame.layout.Horizon, w.frame.layout.Targets
	for e, x := range at {
		first := x.Last + horizon
		for t, v := range w.target.data[first : first+targets] {
			y[e*targets+t] = (v - w.target.low) * w.target.scale
		}
	}
}

// Unscale implements [Examples].
func (w *Windows) Unscale(_ Example, v float32) float32 {
	if w.target.scale == 0 {
		return w.target.low
	}
	return v/w.target.scale + w.target.low
}

// Noise implements [Examples].
func (w *Windows) Noise() float64 { return Noise(w.target.data[:w.train]) }
