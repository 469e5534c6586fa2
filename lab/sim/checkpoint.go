package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"loadstar/fed/round"
	"loadstar/lab/run"
)

// save writes a checkpoint. The disk I/O runs in the background while the next rounds
// train. A crash at any point leaves this checkpoint or the previous one.
func (s *simulation) save() (err error) {
	if err := s.saving.wait(); err != nil {
		return err
	}
	c := checkpoint{
		Dataset: s.fingerprint(), Kernel: s.Kernel.Name(), Now: s.now, Agenda: s.events,
		Tasks: map[round.Assignment]int{}, Steps: s.summary.Steps, RelativeMAE: s.relative,
	}
	if c.Machine, err = s.machine.MarshalJSON(); err != nil {
		return err
	}
	if c.Server, err = s.server.MarshalBinary(); err != nil {
		return err
	}
	if s.own != nil {
		c.Own = s.own.Kept()
	}
	at := map[int]int{} // index into c.Received by round; all clients of a round have the same task
	for _, a := range sortedKeys(s.flights) {
		f := s.flights[a]
		i, ok := at[a.Round]
		if !ok {
			i = len(c.Received)
			at[a.Round] = i
			c.Received = append(c.Received, f.task)
		}
		c.Tasks[a] = i
	}
	if c.Kept, err = s.kept.Commit(); err != nil {
		return err
	}
	if c.Offsets, err = s.folder.Flush(); err != nil {
		return err
	}
	text := c.encode()
	s.saved = time.Now()
	round := s.machine.Round()
	s.saving.begin(func() error {
		if err := errors.Join(s.kept.Sync(), s.folder.Settle()); err != nil {
			return err
		}
		if err := s.folder.Save(text); err != nil {
			return err
		}
		s.kept.Release()
		s.savedAt.Store(int64(round))
		return s.folder.Event("saved", map[string]any{"round": round})
	})
	return nil
}

// background runs functions in a goroutine, one at a time.
type background struct{ done chan error }

func (b *background) begin(do func() error) {
	b.done = make(chan error, 1)
	go func() { b.done <- do() }()
}

// wait waits for the running function, if any, and returns its error.
func (b *background) wait() error {
	if b.done == nil {
		return nil
	}
	err := <-b.done
	b.done = nil
	return err
}

// restore returns the simulation to the last checkpoint or, if there is none, to the beginning.
func (s *simulation) restore(ctx context.Context) error {
	text, err := s.folder.Load()
	if err != nil {
		return err
	}
	if text == nil {
		return s.folder.OpenTables(run.Offsets{})
	}
	var c checkpoint
	if err := c.decode(text); err != nil {
		return fmt.Errorf("%s cannot be resumed: %w", s.folder.Dir, err)
	}
	if now := s.fingerprint(); c.Dataset != now {
		return fmt.Errorf("the run was started with different data: %s, now %s", c.Dataset, now)
	}
	if c.Kernel != s.Kernel.Name() {
		return fmt.Errorf("the run was started with the %s kernels, which round differently from %s: set LOADSTAR_KERNEL=%s", c.Kernel, s.Kernel.Name(), c.Kernel)
	}
	if err := s.machine.UnmarshalJSON(c.Machine); err != nil {
		return err
	}
	if err := s.server.UnmarshalBinary(c.Server); err != nil {
		return err
	}
	if s.own != nil {
		if err := s.own.Restore(c.Own); err != nil {
			return err
		}
	}
	if err := s.kept.Restore(c.Kept); err != nil {
		return err
	}
	if err := s.folder.OpenTables(c.Offsets); err != nil {
		return err
	}
	evaluations, err := run.Read[run.Evaluation](s.folder.Dir, "evaluations")
	if err != nil {
		return err
	}
	s.losses = run.Losses(evaluations)
	s.now, s.events, s.relative = c.Now, c.Agenda, c.RelativeMAE
	s.summary.Steps = c.Steps
	s.savedAt.Store(int64(s.machine.Round()))
	for i := range c.Received {
		t := &c.Received[i]
		t.Limits.Coordinate = s.server.Coordinate(t.Version)
	}
	for _, a := range sortedKeys(c.Tasks) {
		s.start(ctx, a, c.Received[c.Tasks[a]])
	}
	return nil
}
