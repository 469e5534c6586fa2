package aggregate

import (
	"cmp"
	"errors"
	"fmt"

	"loadstar/fed"
)

// errNone is the error for a merge without updates, because the mean of no updates is
// undefined.
var errNone = errors.New("aggregate: nothing to merge: a merge needs at least one update")

// checkSums returns an error if the sums are empty or break the contract of [fed.Merge].
func checkSums(dst []float64, m *fed.Merge) error {
	updates := 0
	for i, s := range m.Sums {
		if s.Delta == nil || s.Delta.Len() != len(dst) {
			return fmt.Errorf("aggregate: the sum of version %d does not have %d numbers", s.Version, len(dst))
		}
		if s.Version > m.Version || i > 0 && s.Version <= m.Sums[i-1].Version {
			return fmt.Errorf("aggregate: sum of version %d at position %d, weights of version %d: want versions in ascending order, none newer than the weights", s.Version, i, m.Version)
		}
		updates += s.Delta.Updates()
	}
	if updates == 0 {
		return errNone
	}
	return nil
}

// checkUpdates returns an error if there are no updates, if one is not finite, or if they
// break the contract of [fed.Merge]. The order of updates matters: some algorithms depend
// on it, and in all algorithms it affects rounding.
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
			return fmt.Errorf("aggregate: the update of client %s does not have %d finite numbers", u.Client, len(dst))
		}
		if u.Version > m.Version {
			return fmt.Errorf("aggregate: the update of client %s is from version %d, want version %d (that of the weights) or older", u.Client, u.Version, m.Version)
		}
		if i > 0 {
			p := &m.Updates[i-1]
			if cmp.Or(cmp.Compare(p.Client, u.Client), cmp.Compare(p.Version, u.Version)) > 0 {
				return fmt.Errorf("aggregate: the update of client %s is out of order: want ascending order of clients, then versions", u.Client)
			}
		}
	}
	return nil
}

// checkResult returns an error if a displacement is not finite.
func checkResult(dst []float64) error {
	if !finite(dst) {
		return fmt.Errorf("aggregate: the displacement is not finite: %w", fed.ErrDiverged)
	}
	return nil
}

func finite[F float32 | float64](x []F) bool {
	for _, f := range x {
		if f-f != 0 { // true only for infinities and NaNs
			return false
		}
	}
	return true
}

// offset returns the distance of a client's trained weight from the weight to be moved, in one
// coordinate. For a fresh update, the distance is the update itself, unrounded.
func offset(m *fed.Merge, u *fed.Received, i int) float64 {
	return (float64(u.From[i]) - float64(m.Shared[i])) + float64(u.Delta[i])
}
