package aggregate

import (
	"cmp"
	"errors"
	"fmt"

	"loadstar/fed"
)

// errNone refuses a merge of nothing: there is no mean of it.
var errNone = errors.New("aggregate: nothing to merge: a merge needs at least one update")

// checkSums refuses sums that are empty or not what a merge promises.
func checkSums(dst []float64, m *fed.Merge) error {
	updates := 0
	for i, s := range m.Sums {
		if s.Delta == nil || s.Delta.Len() != len(dst) {
			return fmt.Errorf("aggregate: the sum of version %d is not of %d numbers", s.Version, len(dst))
		}
		if s.Version > m.Version || i > 0 && s.Version <= m.Sums[i-1].Version {
			return fmt.Errorf("aggregate: a sum of version %d at place %d, with weights of version %d: want versions in ascending order, none newer than the weights", s.Version, i, m.Version)
		}
		updates += s.Delta.Updates()
	}
	if updates == 0 {
		return errNone
	}
	return nil
}

// checkUpdates refuses updates that are none, not finite, or not what a merge
// promises. Order matters to some aggregators and rounding to all.
func checkUpdates(dst []float64, m *fed.Merge) error {
	if len(m.Updates) == 0 {
		return errNone
	}
	if len(m.Shared) != len(dst) || !finite(m.Shared) {
		return fmt.Errorf("aggregate: the shared weights are not %d finite numbers", len(dst))
	}
	for i := range m.Updates {
		u := &m.Updates[i]
		if len(u.Delta) != len(dst) || len(u.From) != len(dst) || !finite(u.Delta) || !finite(u.From) {
			return fmt.Errorf("aggregate: the update of client %s is not of %d finite numbers", u.Client, len(dst))
		}
		if u.Version > m.Version {
			return fmt.Errorf("aggregate: the update of client %s is from version %d, newer than the weights' %d", u.Client, u.Version, m.Version)
		}
		if i > 0 {
			p := &m.Updates[i-1]
			if cmp.Or(cmp.Compare(p.Client, u.Client), cmp.Compare(p.Version, u.Version)) > 0 {
				return fmt.Errorf("aggregate: the update of client %s is out of order", u.Client)
			}
		}
	}
	return nil
}

// checkResult refuses a displacement that is not finite.
func checkResult(dst []float64) error {
	if !finite(dst) {
		return fmt.Errorf("aggregate: the displacement is not finite: %w", fed.ErrDiverged)
	}
	return nil
}

func finite[F float32 | float64](x []F) bool {
	for _, f := range x {
		if f-f != 0 { // only infinities and NaNs are not equal to themselves so
			return false
		}
	}
	return true
}

// offset returns how far a client's trained weights lie from those to be moved, in
// one coordinate. If the client is not stale it is the update itself, unrounded.
func offset(m *fed.Merge, u *fed.Received, i int) float64 {
	return (float64(u.From[i]) - float64(m.Shared[i])) + float64(u.Delta[i])
}
