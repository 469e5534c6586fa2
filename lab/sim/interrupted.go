package sim

import (
	"context"
	"fmt"
)

// Interrupted is the error of a run whose context was cancelled.
type Interrupted struct {
	Round, Rounds int // the round in which it stopped, and the number of rounds
	Saved         int // rounds done at the last checkpoint
	cause         error
}

func (e *Interrupted) Error() string {
	return fmt.Sprintf("stopped in round %d of %d; continue from round %d with --resume", e.Round, e.Rounds, e.Saved+1)
}

func (e *Interrupted) Unwrap() error { return e.cause }

func (s *simulation) interrupted(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if err := s.saving.wait(); err != nil {
		return err
	}
	return &Interrupted{s.machine.Round(), s.Plan.Rounds, int(s.savedAt.Load()), ctx.Err()}
}
