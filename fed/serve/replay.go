package serve

import (
	"errors"
	"fmt"
	"sync"

	"loadstar/forecast/issue"
	"loadstar/series"
	"loadstar/series/feature"
)

// replayDays is the number of days before a cutoff at which a new state begins.
const replayDays = 63

// Replay makes earlier recorded issues of clients, so that their states are the ones that
// they would have if they had made them then. It is safe for concurrent use. A copy may have
// other callbacks.
type Replay struct {
	// Each, if not nil, is called with every issue that is made.
	Each func(issue.Forecast)
	// Also, if not nil, says at which other cutoffs to make issues, and Other is called with
	// them. They are not recorded, so they do not change a state.
	Also  func(cutoff int64) bool
	Other func(issue.Forecast)
	// Wrap, if not nil, may put something between the client's own model and its state.
	Wrap func(issue.Forecaster) issue.Forecaster

	data         *series.Dataset
	own, generic *Model
	blocks       *blocks
}

// blocks has the blocks in memory. Copies of a replay share them.
type blocks struct {
	mu     sync.Mutex
	byTail map[int64]*block
}

// block has what all cutoffs with the same Tail need.
type block struct {
	once         sync.Once
	tails        *Tails
	own, generic *Frame
	err          error
}

// NewReplay returns a replay for the meters of a dataset. Models may be nil; then only
// fallbacks are replayed. The weather of the dataset counts as the forecast of that time.
func NewReplay(d *series.Dataset, own, generic *Model) *Replay {
	return &Replay{data: d, own: own, generic: generic, blocks: &blocks{byTail: map[int64]*block{}}}
}

// Advance makes the recorded issues of meter i, from the newest step that the state has
// seen to the cutoff. The issue at the cutoff itself is left to the caller. A new state
// begins 63 days before the cutoff. Own and generic are what the meter needs of the models;
// nil means that it cannot use the model, for example because it has no personal layers.
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
	from := s.Next()
	if from == 0 {
		from = max(cutoff-replayDays*daySeconds, m.Start+seconds)
	}
	if phase := mod(cutoff, seconds); mod(from-phase, every) != 0 {
		from += every - mod(from-phase, every)
	}
	for at := from; at < cutoff; {
		b, end, err := r.block(at, cutoff)
		if err != nil {
			return err
		}
		meter, err := b.tails.Meter(i)
		if err != nil {
			return err
		}
		var models issue.Models
		if own != nil && b.own != nil {
			models.Own = b.own.Forecaster(meter, *own)
			if r.Wrap != nil {
				models.Own = r.Wrap(models.Own)
			}
		}
		if generic != nil && b.generic != nil {
			models.Generic = b.generic.Forecaster(meter, *generic)
		}
		for ; at < end; at += every {
			f := s.Issue(meter, models, at)
			if r.Each != nil {
				r.Each(f)
			}
			for also := at + seconds; r.Also != nil && also < min(at+every, end); also += seconds {
				if r.Also(also) {
					r.Other(s.Issue(meter, models, also))
				}
			}
		}
	}
	return nil
}

// block returns the block of a cutoff, and the first cutoff after it.
func (r *Replay) block(at, cutoff int64) (*block, int64, error) {
	key := feature.Tail(at, r.data.Seconds())
	first := key + feature.TailSeconds // the first cutoff with this tail
	r.blocks.mu.Lock()
	b := r.blocks.byTail[key]
	if b == nil {
		b = &block{}
		r.blocks.byTail[key] = b
	}
	r.blocks.mu.Unlock()
	b.once.Do(func() { b.err = r.open(b, first) })
	return b, min(first+weekSeconds, cutoff), b.err
}

// open makes the frames of the block whose first cutoff is given.
func (r *Replay) open(b *block, cutoff int64) (err error) {
	ahead := 1
	for _, m := range []*Model{r.own, r.generic} {
		if m != nil {
			first, n := m.span(r.data.Interval)
			ahead = max(ahead, first+n)
		}
	}
	if b.tails, err = newTails(r.data, cutoff, cutoff+weekSeconds-r.data.Seconds(), ahead); err != nil {
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
