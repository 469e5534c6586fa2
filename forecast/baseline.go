package forecast

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/series"
)

// Baseline forecasts one client's load without learning from other clients. It is fitted
// to one client at a time and used by one goroutine at a time.
type Baseline interface {
	// Fit fits the baseline to the training split of a client.
	Fit(c Client) error
	// Forecast writes the forecasts of all targets to out, in kW, given that step last is
	// the newest step with known load. It returns false if a value that the baseline needs
	// is missing.
	Forecast(out []float64, last int) bool
}

// Client contains the data that a baseline uses: a meter and the framer of its examples.
type Client struct {
	Frame *series.Framer
	Meter series.Meter
}

// load returns the load of a step, or NaN if it is missing or outside the series.
func (c *Client) load(step int) float64 {
	if step < 0 || step >= len(c.Meter.Load) {
		return math.NaN()
	}
	return float64(c.Meter.Load[step])
}

// sameTime returns the load at the clock time of step on the newest day for which this load is
// known at step last. It considers only days at a distance from step that is a multiple of the
// given number of days.
func (c *Client) sameTime(step, last, days int) float64 {
	for d := days; ; d += days {
		at := c.Frame.Lag(c.Meter, step, d)
		if at < 0 {
			return math.NaN()
		}
		if at > last {
			continue
		}
		if v := c.load(at); !math.IsNaN(v) {
			return v
		}
		// Where the clocks change, this time can lie one hour before the start of the complete
		// history. The load d times 24 hours before step is still in the history.
		return c.load(step - d*c.perDay())
	}
}

// perDay returns the number of steps in 24 hours.
func (c *Client) perDay() int {
	return int(24 * time.Hour / c.Frame.Time(c.Meter, 1).Sub(c.Frame.Time(c.Meter, 0)))
}

// filled returns the values of an input at all steps of the meter and of the targets after it.
// A missing value is replaced by the last value before it or, if there is none, by the mean
// over the training split.
func (c *Client) filled(name string) []float64 {
	l := c.Frame.Layout()
	x := make([]float64, len(c.Meter.Load)+l.Horizon+l.Targets)
	var sum, n float64
	train := c.Frame.Train(c.Meter)
	for i := range x {
		x[i] = float64(c.Frame.Value(c.Meter, name, i))
		if i < train && !math.IsNaN(x[i]) {
			sum += x[i]
			n++
		}
	}
	last := sum / max(n, 1)
	for i, v := range x {
		if math.IsNaN(v) {
			x[i] = last
		}
		last = x[i]
	}
	return x
}

// namedBaseline is a baseline that can be selected by name.
type namedBaseline struct {
	name, summary string
	make          func() Baseline
}

// baselines lists the available baselines in display order.
var baselines = []namedBaseline{
	{"persistence", "the last known value", func() Baseline { return &persistence{} }},
	{"naive-day", "the same clock time one day before", func() Baseline { return &seasonalNaive{days: 1} }},
	{"naive-week", "the same clock time one week before", func() Baseline { return &seasonalNaive{days: 7} }},
	{"rolling-median", "the median at the same clock time over the last 28 days, or those of the same type", func() Baseline { return &rolling{center: median} }},
	{"rolling-mean", "the mean at the same clock time over the last 28 days, or those of the same type", func() Baseline { return &rolling{center: mean} }},
	{"ridge", "linear regression on the last 12 loads, calendar and weather", func() Baseline { return &Ridge{} }},
	{"ridge-rich", "linear regression on 24 loads, those 2, 3 and 7 days before, calendar and weather", func() Baseline { return &Ridge{Rich: true} }},
}

// Baselines returns the available baselines.
func Baselines() []Summary {
	var all []Summary
	for _, b := range baselines {
		all = append(all, Summary{b.name, b.summary})
	}
	return all
}

// NewBaseline returns the baseline with the given name, not yet fitted to a client.
func NewBaseline(name string) (Baseline, error) {
	i := slices.IndexFunc(baselines, func(b namedBaseline) bool { return b.name == name })
	if i < 0 {
		return nil, fmt.Errorf("no baseline %q; there are %s", name, names(Baselines()))
	}
	return baselines[i].make(), nil
}

// persistence forecasts the last known value for every target.
type persistence struct{ c Client }

func (p *persistence) Fit(c Client) error {
	p.c = c
	return nil
}

func (p *persistence) Forecast(out []float64, last int) bool {
	v := p.c.load(last)
	for i := range out {
		out[i] = v
	}
	return v == v
}

// seasonalNaive forecasts the value at the target's clock time on the newest known day
// that is a multiple of the given number of days before the target.
type seasonalNaive struct {
	days int
	c    Client
}

func (s *seasonalNaive) Fit(c Client) error {
	s.c = c
	return nil
}

func (s *seasonalNaive) Forecast(out []float64, last int) bool {
	for i := range out {
		out[i] = s.c.sameTime(last+s.c.Frame.Layout().Horizon+i, last, s.days)
		if out[i] != out[i] {
			return false
		}
	}
	return true
}

// rollingDays is the number of days over which rolling takes the median or the mean.
const rollingDays = 28

// rolling forecasts the median or the mean of the loads at the target's clock time on the
// newest 28 days for which they can be known. Unlike the load of a day or a week before, it
// does not repeat a single event. Missing loads are ignored. The median has the lower absolute
// error, but only means can be added up.
//
// For each client, the absolute error on the validation split determines whether rolling uses
// only days of the target's type (working days or weekends). Buildings need this restriction,
// but it leaves too few days for homes.
type rolling struct {
	center  func(x []float64) float64 // may change the order of x, which is not empty
	c       Client
	weekend []bool // weekend flag of each step, or nil if all days count
	values  []float64
}

func (r *rolling) Fit(c Client) error {
	r.c, r.weekend = c, nil
	all := r.check()
	r.weekend = make([]bool, len(c.Meter.Load)+c.Frame.Layout().Horizon+c.Frame.Layout().Targets)
	for step := range r.weekend {
		r.weekend[step] = c.Frame.Value(c.Meter, "day_of_week", step) >= saturday
	}
	if !(r.check() < all) {
		r.weekend = nil
	}
	return nil
}

// check returns the sum of the absolute errors of a forecast every 6 hours in the validation
// split.
func (r *rolling) check() (sum float64) {
	l := r.c.Frame.Layout()
	out, every := make([]float64, l.Targets), max(r.c.perDay()/4, 1)
	_ = r.c.Frame.Windows(r.c.Meter, nil).Each(series.Validation, func(last int) error {
		if !onStride(last, every) {
			return nil
		}
		if !r.Forecast(out, last) {
			sum = math.Inf(1)
		}
		for i, v := range out {
			sum += math.Abs(v - r.c.load(last+l.Horizon+i))
		}
		return nil
	}) // the function never returns an error
	return sum
}

func (r *rolling) Forecast(out []float64, last int) bool {
	for i := range out {
		step := last + r.c.Frame.Layout().Horizon + i
		first := 1 + (step-last-1)/r.c.perDay() // days from the target back to the newest known day
		r.values = r.values[:0]
		for d := first; d < first+rollingDays; d++ {
			at := r.c.Frame.Lag(r.c.Meter, step, d)
			if at < 0 || at > last || r.weekend != nil && r.weekend[at] != r.weekend[step] {
				continue
			}
			if v := r.c.load(at); !math.IsNaN(v) {
				r.values = append(r.values, v)
			}
		}
		if len(r.values) == 0 {
			return false
		}
		out[i] = r.center(r.values)
	}
	return true
}

func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}
