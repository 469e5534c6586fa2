package serve

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"loadstar/forecast/issue"
	"loadstar/series"
	"loadstar/series/feature"
)

// replayDays is the number of days before a cutoff on which a new state begins.
const replayDays = 63

// Replay makes the recorded issues that clients have missed. Afterwards, a client's state is
// the same as if the client had made these issues on time. A Replay is safe for concurrent use.
// A copy may have different callbacks.
type Replay struct {
	// Each, if not nil, is called with every recorded issue.
	Each func(issue.Forecast)
	// Also, if not nil, selects additional cutoffs at which to make issues. Other is called
	// with each of these issues, which are not recorded and do not change a state.
	Also  func(cutoff int64) bool
	Other func(issue.Forecast)
	// Wrap, if not nil, may wrap the client's own model.
	Wrap func(issue.Forecaster) issue.Forecaster
	// Weather, if not nil, may change the values of a weather column from a cutoff on, which are
	// initially the measured values. A value that it sets to NaN is unknown at the cutoff.
	Weather func(cutoff int64, name string, ahead []float32)

	data         *series.Dataset
	own, generic *Model
	blocks       *blocks
}

// blocks contains the blocks in memory. Copies of a replay share them.
type blocks struct {
	mu     sync.Mutex
	byTail map[int64]*block // by tail or, with Weather, by cutoff
}

// block contains the data that all cutoffs with the same Tail share.
type block struct {
	once         sync.Once
	tails        *Tails
	own, generic *Frame
	err          error
}

// NewReplay returns a replay for the meters of a dataset. Either model may be nil; without
// models, only fallbacks are replayed. The dataset's weather is treated as the weather forecast
// of that time.
func NewReplay(d *series.Dataset, own, generic *Model) *Replay {
	return &Replay{data: d, own: own, generic: generic, blocks: &blocks{byTail: map[int64]*block{}}}
}

// Advance makes the recorded issues of meter i from the newest step that the state has seen up
// to the cutoff. The caller makes the issue at the cutoff itself. A new state begins 63 days
// before the cutoff. own and generic are the meter's clients for the two models; nil means that
// the meter cannot use the model, for example because it has no personal layers.
func (r *Replay) Advance(s *issue.State, i int, own, generic *Client, cutoff int64) error {
	m, seconds := r.data.Meter(i), r.data.Seconds()
	var targets []int
	for _, m := range []*Model{r.own, r.generic} {
		if m != nil {
			_, n := m.span(r.data.Interval)
			targets = append(targets, n)
		}
	}
	every := int64(s.Every(targets...)) * seconds
	from := cmp.Or(s.Next(), max(cutoff-replayDays*daySeconds, m.Start+seconds))
	if phase := mod(cutoff, seconds); mod(from-phase, every) != 0 {
		from += every - mod(from-phase, every)
	}
	var (
		meter  series.Meter
		models issue.Models
		end    int64 // end of the block
	)
	for at := from; at < cutoff; at += seconds {
		recorded := (at-from)%every == 0
		if !recorded && (r.Also == nil || !r.Also(at)) {
			continue
		}
		if at >= end {
			var b *block
			var err error
			if b, end, err = r.block(at); err != nil {
				return err
			}
			if meter, err = b.tails.Meter(i); err != nil {
				return err
			}
			models = issue.Models{}
			if own != nil && b.own != nil {
				models.Own = b.own.Forecaster(meter, *own)
				if r.Wrap != nil {
					models.Own = r.Wrap(models.Own)
				}
			}
			if generic != nil && b.generic != nil {
				models.Generic = b.generic.Forecaster(meter, *generic)
			}
		}
		f := s.Issue(meter, models, at)
		switch {
		case !recorded:
			r.Other(f)
		case r.Each != nil:
			r.Each(f)
		}
	}
	return nil
}

// block returns the block of a cutoff, and the first cutoff after it.
func (r *Replay) block(at int64) (*block, int64, error) {
	key := feature.Tail(at, r.data.Seconds())
	first := key + feature.TailSeconds // the first cutoff with this tail
	end := first + weekSeconds
	if r.Weather != nil { // every cutoff has its own weather
		key, first, end = at, at, at+r.data.Seconds()
	}
	r.blocks.mu.Lock()
	b := r.blocks.byTail[key]
	if b == nil {
		b = &block{}
		r.blocks.byTail[key] = b
	}
	r.blocks.mu.Unlock()
	b.once.Do(func() { b.err = r.open(b, first, end) })
	return b, end, b.err
}

// open creates the frames of the block for cutoffs from first up to, but not including, end.
func (r *Replay) open(b *block, first, end int64) (err error) {
	ahead := 1
	for _, m := range []*Model{r.own, r.generic} {
		if m != nil {
			first, n := m.span(r.data.Interval)
			ahead = max(ahead, first+n)
		}
	}
	if b.tails, err = newTails(r.data, first, end-r.data.Seconds(), ahead, r.Weather); err != nil {
		return err
	}
	frame := func(m *Model) *Frame {
		if m == nil {
			return nil
		}
		f, e := m.Frame(b.tails)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("replay: %w", e))
		}
		return f
	}
	b.own, b.generic = frame(r.own), frame(r.generic)
	return err
}
