package live

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/forecast/issue"
)

// inputs reads the inputs of forecasts: configuration, readings and weather. It does not change
// after Open, so it needs no lock.
type inputs struct {
	c     Config
	point int // index of the level 0.5
}

// Site returns what all clients have in common.
func (in *inputs) Site() Site {
	return Site{
		Name: in.c.Site.Name, Zone: in.c.Site.Clock, Step: in.c.Site.Interval, H: in.c.H, Levels: slices.Clone(in.c.Levels), Generated: in.c.Site.Generated,
	}
}

func (in *inputs) trusted() error {
	if in.c.Clock == nil {
		return nil
	}
	if err := in.c.Clock(); err != nil {
		return fmt.Errorf("%w: %w", ErrClock, err)
	}
	return nil
}

// seconds returns the length of a step.
func (in *inputs) seconds() int64 { return int64(in.c.Site.Interval / time.Second) }

// floor returns the end of the newest step that is complete at the given time.
func (in *inputs) floor(unix int64) int64 { return unix - unix%in.seconds() }

// ahead is the number of steps after a cutoff that may need weather.
func (in *inputs) ahead() int { return max(in.c.H, int(48*time.Hour/in.c.Site.Interval)) }

// loads reads the load of a client in [from, to).
type loads func(client string, from, to int64) ([]float32, error)

// stored reads the current load of a client from the store.
func (in *inputs) stored(client string, from, to int64) ([]float32, error) {
	m, err := in.c.Store.Load(client, from, to)
	return m.Load, err
}

// load reads the load of a client, or the sum of a group's loads, in [from, to).
func (in *inputs) load(read loads, name string, members []string, from, to int64) ([]float32, error) {
	if members == nil {
		return read(name, from, to)
	}
	sum := make([]float32, (to-from)/in.seconds())
	for _, x := range members {
		load, err := read(x, from, to)
		if err != nil {
			return nil, err
		}
		for i, v := range load {
			sum[i] += v
		}
	}
	return sum, nil
}

// midnight returns the last local midnight at or before a time.
func (in *inputs) midnight(t int64) int64 {
	y, m, d := time.Unix(t, 0).In(in.c.Site.Clock).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, in.c.Site.Clock).Unix()
}

// weekBefore returns the load at the same clock time 7 days earlier, or 14 days earlier if that
// load is missing.
func (in *inputs) weekBefore(at func(int64) float64, t int64) float64 {
	clock := time.Unix(t, 0).In(in.c.Site.Clock)
	for _, days := range []int{7, 14} {
		if v := at(clock.AddDate(0, 0, -days).Unix()); !math.IsNaN(v) {
			return v
		}
	}
	return math.NaN()
}

// newState returns an empty state of a client.
func (in *inputs) newState() (*issue.State, error) {
	return issue.NewState(in.issueConfig())
}

func (in *inputs) issueConfig() issue.Config {
	return issue.Config{Step: in.c.Site.Interval, Clock: in.c.Site.Clock, H: in.c.H, Levels: in.c.Levels, Fallback: in.c.Fallback}
}

func (in *inputs) newGroup() (*issue.Group, error) { return issue.NewGroup(in.issueConfig()) }
