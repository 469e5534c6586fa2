package sim

import (
	"errors"
	"fmt"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/limit"
	"loadstar/fed/round"
)

// receive limits an update that may come from a hostile client, as a server does. The updates
// of honest clients are already within the limits.
func (s *simulation) receive(task fed.Task, u *fed.Update) {
	if s.hostile != nil {
		s.hostile(task, u)
		limit.Apply(task.Limits, u)
	}
}

// count adds an update to a fold. A server rejects an update that is out of bounds, and
// continues. A simulation stops with an error that explains the cause.
func (s *simulation) count(f *round.Fold, u *fed.Update, from []float32) error {
	err := f.Add(u, from)
	if errors.Is(err, exact.ErrBound) || errors.Is(err, exact.ErrFinite) {
		return fmt.Errorf("the update of client %s is out of bounds: %w; unless server.bound is too small, %w", u.Client, err, fed.ErrDiverged)
	}
	return err
}
