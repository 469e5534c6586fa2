package round

import (
	"cmp"
	"fmt"
	"slices"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/limit"
)

// Rules contains the settings for summing updates.
type Rules struct {
	Needs fed.Needs
	// Scale is the scale for sums of weighted updates, and Control the scale for sums of control
	// variates.
	Scale, Control exact.Scale
	// Weight returns an update's weight, given its client's number of examples.
	Weight func(examples int) int64
	// WeightControl means that the change of a control variate has the weight of its update.
	// Otherwise, its weight is 1.
	WeightControl bool
	// ByExamples means that weights are not all 1. Tallied means that the server limits updates
	// by the sizes of earlier updates. Coarse means that the tallies of these sizes are coarse,
	// as in the vectors of private plans.
	ByExamples, Tallied, Coarse bool
}

// ControlWeight returns the weight of the change of a control variate whose update has the
// given weight.
func (r Rules) ControlWeight(weight int64) int64 {
	if r.WeightControl {
		return weight
	}
	return 1
}

// Check returns the error that [Fold.Add] would return for an update from ReadUpdate, except that
// it does not check whether a sum is full.
func (r Rules) Check(u *fed.Update) error {
	weight := r.Weight(u.Examples)
	if r.Needs.Control {
		if err := r.Control.Check(r.ControlWeight(weight), u.Control); err != nil {
			return err
		}
	}
	return r.Scale.Check(weight, u.Delta)
}

// Fold collects the updates of one merge. If the aggregator needs only sums, a fold stores
// no individual updates, and its memory does not grow with their number. It is not safe
// for concurrent use. Give each worker its own fold and join them in any order.
type Fold struct {
	rules   Rules
	sums    []fed.Sums
	updates []fed.Received
	n       int
	tally   limit.Tally
	spare   *fed.Sums // empty sums to reuse after a Reset
}

// NewFold returns an empty fold that sums updates by the given rules.
func NewFold(r Rules) *Fold { return &Fold{rules: r} }

// Len returns the number of updates.
func (f *Fold) Len() int { return f.n }

// Add counts an update that was trained from the given shared weights. On an error the
// update is rejected and the fold is unchanged. The fold retains the slices of an update
// only if the aggregator needs individual updates.
func (f *Fold) Add(u *fed.Update, from []float32) error {
	if len(u.Delta) != len(from) {
		return fmt.Errorf("round: the update has %d weights, want %d", len(u.Delta), len(from))
	}
	s := f.at(u.Version, len(from))
	weight := f.rules.Weight(u.Examples)
	if f.rules.Needs.Control {
		// Check the control variate before adding anything, so that either both sums
		// include the update or neither does.
		if err := s.Control.Check(f.rules.ControlWeight(weight), u.Control); err != nil {
			return err
		}
	}
	if err := s.Delta.Add(weight, u.Delta); err != nil {
		return err
	}
	if f.rules.Needs.Control {
		if err := s.Control.Add(f.rules.ControlWeight(weight), u.Control); err != nil {
			return err
		}
	}
	if f.rules.Needs.EachUpdate {
		f.updates = append(f.updates, fed.Received{Update: *u, From: from})
	}
	f.n++
	if f.rules.Coarse {
		f.tally.AddCoarse(u)
	} else {
		f.tally.Add(u)
	}
	return nil
}

// SetTally replaces the tally of the updates. A sum does not contain the sizes of its
// updates, so a caller that folds sums must supply the sizes.
func (f *Fold) SetTally(t limit.Tally) { f.tally = t }

// at returns the sums of a version. If there are none yet, it inserts empty sums in ascending
// order of version.
func (f *Fold) at(version, length int) *fed.Sums {
	i, ok := slices.BinarySearchFunc(f.sums, version, func(s fed.Sums, v int) int { return s.Version - v })
	if !ok {
		var s fed.Sums
		if f.spare != nil && f.spare.Delta.Len() == length {
			s, f.spare = *f.spare, nil
		} else {
			s = f.newSums(length)
		}
		s.Version = version
		f.sums = slices.Insert(f.sums, i, s)
	}
	return &f.sums[i]
}

func (f *Fold) newSums(length int) fed.Sums {
	s := fed.Sums{Delta: exact.NewSum(f.rules.Scale, length)}
	if f.rules.Needs.Control {
		s.Control = exact.NewSum(f.rules.Control, length)
	}
	return s
}

// Join adds everything that another fold with the same rules has counted.
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
	f.tally.Merge(&o.tally)
	return nil
}

// Reset empties the fold. It retains the memory for the sums of one version for reuse.
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
	f.sums, f.updates, f.n, f.tally = f.sums[:0], f.updates[:0], 0, limit.Tally{}
}

// Sums returns one element per version, in ascending order of version. The sums still
// belong to the fold.
func (f *Fold) Sums() []fed.Sums {
	sums, _ := f.contents()
	return sums
}

// contents returns the sums and the individual updates in the order that an aggregator
// expects.
func (f *Fold) contents() ([]fed.Sums, []fed.Received) {
	slices.SortFunc(f.updates, func(a, b fed.Received) int {
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Version, b.Version))
	})
	// Remove versions for which every update was rejected.
	f.sums = slices.DeleteFunc(f.sums, func(s fed.Sums) bool { return s.Delta.Updates() == 0 })
	return f.sums, f.updates
}
