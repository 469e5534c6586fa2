// Package outlook forecasts the next hours and days of every meter of a dataset with a trained
// model, and scores the same forecasts on past readings.
//
// With the same readings, an agent would issue the same forecasts. [Run] reads the readings
// before a cutoff, replays earlier issues to bring the client's state to the cutoff, and issues
// one forecast for each meter.
package outlook

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/internal/textfmt"
	"loadstar/series"
)

// Config describes forecasts of a dataset.
type Config struct {
	// Model may be nil. Generic is a young model that forecasts where Model cannot. It may be
	// nil if Model is set.
	Model   *Model
	Generic *serve.Model
	Dataset *series.Dataset
	// At is the cutoff in Unix seconds. If it is 0, each meter's cutoff is the end of its
	// newest reading.
	At int64
	// H is the number of steps to forecast; 0 means all steps that the model forecasts.
	H int
	// Levels are the quantiles to forecast, in ascending order; nil means 0.1, 0.5 and 0.9.
	Levels []float64
	// Clients are the meters to forecast; nil means all.
	Clients []string
	// Calibrate is the length of the period that is replayed to determine intervals and the
	// blend. If it is 0, forecasts continue from the states in the model's folder. Without a
	// state, 63 days are replayed.
	Calibrate time.Duration
	// FitSteps is the number of training steps for fitting personal layers to meters that have
	// none; 0 means that such meters do not use the model.
	FitSteps int
	Fallback issue.Fallback
	// Paths is the number of joint scenarios of each forecast.
	Paths   int
	Workers int
	// Now is the current time. Weather before Now counts as observed.
	Now time.Time
	// Days, if not empty, is the path of the CSV file for daily energies and peaks.
	Days string
	// Inputs, if not nil, collects the model's inputs.
	Inputs *Inputs
	// Progress, if not nil, is called after every meter.
	Progress func(done, total int)
}

// own returns the trained model, or nil.
func (c *Config) own() *serve.Model {
	if c.Model == nil {
		return nil
	}
	return c.Model.folder.Model
}

// name returns the name and the version of the model that is tried first.
func (c *Config) name() (name, version string) {
	if c.Model == nil {
		return c.Generic.Name, ""
	}
	return c.Model.Name()
}

// Run forecasts all meters and calls each with their forecasts, in the order of the meters'
// names. It stops at the first error.
func Run(ctx context.Context, c Config, each func(issue.Forecast) error) (*Summary, error) {
	meters, err := chosen(c.Dataset, c.Clients)
	if err != nil {
		return nil, err
	}
	if c.Generic != nil && !c.Generic.Suits(c.Dataset.Interval) {
		if c.Model == nil {
			return nil, fmt.Errorf("the readings of %s are %s apart; without a trained model, forecasts need steps that divide an hour", c.Dataset.Name, textfmt.Duration(c.Dataset.Interval))
		}
		c.Generic = nil
	}
	if c.H == 0 {
		if c.Model != nil {
			c.H = c.Model.Reach()
		} else {
			c.H = c.Generic.Reach(c.Dataset.Interval)
		}
	}
	if err := c.checkPaths(); err != nil {
		return nil, err
	}
	p, err := newProducer(c)
	if err != nil {
		return nil, err
	}
	summary := newSummary(c, len(meters))
	// Meters are forecast in parallel and delivered in order. The queue bounds the
	// number of forecasts in memory.
	type job struct {
		meter int
		done  chan struct{}
		made  made
		err   error
	}
	queue, todo := make(chan *job, 4*c.Workers), make(chan *job)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(queue)
		defer close(todo)
		for _, i := range meters {
			j := &job{meter: i, done: make(chan struct{})}
			select {
			case queue <- j:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case todo <- j:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range max(c.Workers, 1) {
		g.Go(func() error {
			for j := range todo {
				j.made, j.err = p.forecast(ctx, j.meter)
				close(j.done)
			}
			return nil
		})
	}
	g.Go(func() error {
		done := 0
		for j := range queue {
			select {
			case <-j.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if j.err != nil {
				return j.err
			}
			summary.add(j.made)
			if c.Inputs != nil {
				if err := c.Inputs.add(j.made.forecast.Client, j.made.forecast.Cutoff, j.made.inputs); err != nil {
					return err
				}
			}
			if err := each(j.made.forecast); err != nil {
				return err
			}
			if done++; c.Progress != nil {
				c.Progress(done, len(meters))
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	summary.finish()
	return summary, nil
}

// chosen returns the indexes of the named meters, or of all meters, in the order of their
// names.
func chosen(d *series.Dataset, names []string) ([]int, error) {
	type meter struct {
		id     string
		number int
	}
	all := make([]meter, 0, d.Len())
	for i := range d.Len() {
		all = append(all, meter{d.Meter(i).ID, i})
	}
	slices.SortFunc(all, func(a, b meter) int { return strings.Compare(a.id, b.id) })
	if len(all) == 0 {
		return nil, fmt.Errorf("dataset %s has no meters", d.Name)
	}
	var numbers []int
	if len(names) == 0 {
		for _, m := range all {
			numbers = append(numbers, m.number)
		}
		return numbers, nil
	}
	names = slices.Clone(names)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		at, ok := slices.BinarySearchFunc(all, name, func(m meter, name string) int { return strings.Compare(m.id, name) })
		if !ok {
			return nil, fmt.Errorf("dataset %s has no meter %s; it has %d, such as %s", d.Name, name, len(all), all[0].id)
		}
		numbers = append(numbers, all[at].number)
	}
	return numbers, nil
}
