package feature

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"loadstar/series"
)

// originFill is the maximum number of consecutive missing loads up to and including an origin,
// if gaps are allowed.
const originFill = 2

// Frame makes the inputs of a dataset's meters. It is safe for concurrent use.
type Frame struct {
	framer *series.Framer
	task   Task
	groups []Group
	width  int
	naive  int
	gaps   int // steps of the last 168 hours that may be missing
	clock  *clock
	cache  cache
}

// NewFrame returns a frame with the named groups of inputs, or with all groups that the dataset
// has if groups is nil. The layout's lookback must be 168 hours. The layout's list of inputs is
// ignored.
//
// Gaps is the maximum share of the last 168 hours in which the load may be missing at an
// origin. A missing load is replaced by the newest load at the same clock time on an earlier
// day, or on the series' first day by the previous load. At most two consecutive loads up to
// and including the origin may be missing. With gaps 0, the last 168 hours must be complete.
// Targets must always be measured.
func NewFrame(d *series.Dataset, l series.Layout, s series.Split, groups []string, gaps float64) (*Frame, error) {
	t := Task{StepsPerDay: d.StepsPerDay(), Horizon: l.Horizon, Targets: l.Targets}
	if week := 7 * t.StepsPerDay; l.Lookback != week {
		return nil, fmt.Errorf("a lookback of %d steps is not possible for these inputs; want 168 hours, which is %d steps of %s", l.Lookback, week, d.Interval)
	}
	if !(gaps >= 0 && gaps < 1) {
		return nil, fmt.Errorf("gaps is %g; it must be at least 0 and less than 1", gaps)
	}
	l.Inputs = []series.Input{{Name: "load"}}
	f := &Frame{task: t, gaps: int(gaps*float64(l.Lookback) + 1e-9)}
	f.cache.limit = DefaultCache
	var err error
	if f.framer, err = series.NewFramer(d, l, s); err != nil {
		return nil, err
	}
	if f.groups, err = choose(groups, d.Country, d.Weather.Names); err != nil {
		return nil, fmt.Errorf("dataset %s: %w", d.Name, err)
	}
	if f.clock, err = newClock(d, f.framer, t); err != nil {
		return nil, fmt.Errorf("dataset %s: %w", d.Name, err)
	}
	f.width, f.naive = shape(t, f.groups)
	return f, nil
}

// Shape returns the number of inputs of the named groups, and the position of the naive
// forecast (see [Frame.Naive]). It needs no dataset.
func Shape(t Task, names []string) (width, naive int, err error) {
	chosen := named(names)
	if len(chosen) != len(names) || len(names) == 0 {
		return 0, -1, fmt.Errorf("the input groups %v are not different groups out of %s", names, strings.Join(groupNames(), ", "))
	}
	width, naive = shape(t, chosen)
	return width, naive, nil
}

func shape(t Task, groups []Group) (width, naive int) {
	names := inputNames(t, groups)
	if t.next() {
		return len(names), slices.Index(names, "recent.0")
	}
	return len(names), slices.Index(names, "lag.target-24h")
}

func inputNames(t Task, groups []Group) (names []string) {
	for _, g := range groups {
		names = append(names, g.names(t)...)
	}
	return names
}

// Names returns the name of each input of the named groups. It needs no dataset.
func Names(t Task, names []string) []string {
	return inputNames(t, named(names))
}

// named returns the groups with the given names, in the order of the inputs.
func named(names []string) (chosen []Group) {
	for _, g := range groups {
		if slices.Contains(names, g.Name) {
			chosen = append(chosen, g)
		}
	}
	return chosen
}

func groupNames() []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.Name)
	}
	return names
}

// Framer returns the framer that provides the layout, the split and the times of the examples.
func (f *Frame) Framer() *series.Framer { return f.framer }

// Groups returns the groups of inputs, in order.
func (f *Frame) Groups() []Group { return slices.Clone(f.groups) }

// Width returns the number of inputs.
func (f *Frame) Width() int { return f.width }

// Naive returns the position of the input that is the naive forecast, or -1 if there is none.
// The naive forecast is the load at the origin if the only target is the step after it.
// Otherwise, it is the newest known load at the target's clock time.
func (f *Frame) Naive() int { return f.naive }

// Names returns the name of each input.
func (f *Frame) Names() []string { return inputNames(f.task, f.groups) }

// Reach returns how far before the origin the inputs read loads.
func (f *Frame) Reach() time.Duration {
	longest := time.Duration(0)
	for _, g := range f.groups {
		longest = max(longest, g.Reach)
	}
	return longest
}

// Frozen returns the examples of a meter with the given scaling, which the caller must not
// change. A client that forecasts uses the scaling with which its weights were trained,
// while its series grows.
func (f *Frame) Frozen(m series.Meter, s *Scaling) *Rows {
	r := f.Rows(m)
	r.frozen = s
	return r
}

// Newest returns rows with the given scaling for the origins that are not before the step
// since. The targets of these origins may be unknown. The rows have no training examples, so
// Len is 0 for every part of the span. Forecasts from the newest origins take much less time
// with Newest than with Frozen.
func (f *Frame) Newest(m series.Meter, s *Scaling, since int) *Rows {
	return &Rows{frame: f, meter: m, frozen: s, since: max(since, 0), Origins: f.framer.Origins(series.Meter{}, nil)}
}

// Rows returns the examples of a meter, which must be one of the dataset's.
func (f *Frame) Rows(m series.Meter) *Rows {
	r := &Rows{frame: f, meter: m}
	week := 7 * f.clock.perDay
	missing, since := 0, week // missing steps in the last week, and steps since a measured load
	targets := 0              // consecutive measured loads up to the last target
	next := 0                 // the first step that targets does not count
	r.Origins = f.framer.Origins(m, func(last int) bool {
		for ; next <= last+f.task.reach(); next++ {
			targets++
			if series.Missing(m.Load[next]) {
				targets = 0
			}
		}
		since++
		if series.Missing(m.Load[last]) {
			missing++
		} else {
			since = 0
		}
		if last >= week && series.Missing(m.Load[last-week]) {
			missing--
		}
		return last >= week-1 && missing <= f.gaps && since <= min(originFill, f.gaps) && targets >= f.task.Targets
	})
	return r
}
