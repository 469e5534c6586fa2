package round

import (
	"cmp"
	"fmt"
	"slices"

	"loadstar/fed"
	"loadstar/fed/exact"
)

// Rules say how updates add up.
type Rules struct {
	Needs fed.Needs
	// Scale is that of weighted updates, Control that of control variates.
	Scale, Control exact.Scale
	// Weight is an update's, by its client's examples.
	Weight func(examples int) int64
}

// Fold collects the updates of one merge. Where the aggregator is content with
// sums, no update is kept, however many come. It is not safe for concurrent use:
// give each worker its own and join them, in any order.
type Fold struct {
	rules   Rules
	sums    []fed.Sums
	updates []fed.Received
	n       int
	spare   *fed.Sums // empty, from before a Reset
}

// NewFold returns an empty fold.
func NewFold(r Rules) *Fold { return &Fold{rules: r} }

// Len returns the number of updates.
func (f *Fold) Len() int { return f.n }

// Add counts an update that was trained from the given shared weights. If it
// returns an error, the update is refused and nothing has changed. The fold keeps
// slices of an update only if the aggregator needs each.
func (f *Fold) Add(u *fed.Update, from []float32) error {
	if len(u.Delta) != len(from) {
		return fmt.Errorf("round: an update of %d weights for %d shared ones", len(u.Delta), len(from))
	}
	s := f.at(u.Version, len(from))
	weight := f.rules.Weight(u.Examples)
	if f.rules.Needs.Control {
		// Checked first, so that the two sums take the update together or not at all.
		if err := s.Control.Check(1, u.Control); err != nil {
			return err
		}
	}
	if err := s.Delta.Add(weight, u.Delta); err != nil {
		return err
	}
	if f.rules.Needs.Control {
		if err := s.Control.Add(1, u.Control); err != nil {
			return err
		}
	}
	if f.rules.Needs.EachUpdate {
		f.updates = append(f.updates, fed.Received{Update: *u, From: from})
	}
	f.n++
	return nil
}

// at returns the sums of a version, which are kept in ascending order.
func (f *Fold) at(version, length int) *fed.Sums {
	i, ok := slices.BinarySearchFunc(f.sums, version, func(s fed.Sums, v int) int { return s.Version - v })
	if !ok {
		f.sums = slices.Insert(f.sums, i, f.empty(length))
		f.sums[i].Version = version
	}
	return &f.sums[i]
}

func (f *Fold) empty(length int) fed.Sums {
	if f.spare != nil && f.spare.Delta.Len() == length {
		s := *f.spare
		f.spare = nil
		return s
	}
	return f.newSums(length)
}

func (f *Fold) newSums(length int) fed.Sums {
	s := fed.Sums{Delta: exact.NewSum(f.rules.Scale, length)}
	if f.rules.Needs.Control {
		s.Control = exact.NewSum(f.rules.Control, length)
	}
	return s
}

// Join counts everything that another fold of the same rules has counted.
func (f *Fold) Join(o *Fold) error {
	for _, s := range o.sums {
		mine := f.at(s.Version, s.Delta.Len())
		if err := mine.Delta.Merge(s.Delta); err != nil {
			return err
		}
		if s.Control != nil {
			if err := mine.Control.Merge(s.Control); err != nil {
				return err
			}
		}
	}
	f.updates = append(f.updates, o.updates...)
	f.n += o.n
	return nil
}

// Reset empties the fold, and keeps memory for the sums of one version.
func (f *Fold) Reset() {
	if len(f.sums) > 0 {
		s := f.sums[0]
		s.Delta.Reset()
		if s.Control != nil {
			s.Control.Reset()
		}
		f.spare = &s
	}
	clear(f.sums)
	clear(f.updates)
	f.sums, f.updates, f.n = f.sums[:0], f.updates[:0], 0
}

// contents returns what was counted as an aggregator wants it.
func (f *Fold) contents() ([]fed.Sums, []fed.Received) {
	slices.SortFunc(f.updates, func(a, b fed.Received) int {
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Version, b.Version))
	})
	// A version whose only update was refused has nothing to say.
	f.sums = slices.DeleteFunc(f.sums, func(s fed.Sums) bool { return s.Delta.Updates() == 0 })
	return f.sums, f.updates
}
