package sim

import (
	"context"
	"fmt"
	"time"

	"loadstar/fed"
	"loadstar/fed/round"
	"loadstar/lab/run"
)

// checkpoint is a run between two rounds. Clients under way are trained again from
// the weights that they had received.
type checkpoint struct {
	Dataset, Kernel string
	Machine, Server []byte
	Own             []float32 // what the server's own personal layers are
	Kept            []byte
	Now             time.Duration
	Agenda          []event
	Tasks           map[round.Assignment]int // index into Received
	Received        []fed.Task
	Offsets         run.Offsets
	Steps           int64
	MASE            float64
}

// save makes what has happened so far last. A crash at any point of it leaves the
// checkpoint before.
func (s *simulation) save() (err error) {
	c := checkpoint{
		Dataset: fingerprint(s.Dataset), Kernel: s.Kernel.Name(), Now: s.now, Agenda: s.agenda,
		Tasks: map[round.Assignment]int{}, Steps: s.summary.Steps, MASE: s.mase,
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
	at := map[int]int{} // by round: there is one task for each
	for a, f := range s.flights {
		i, ok := at[a.Round]
		if !ok {
			i = len(c.Received)
			at[a.Round] = i
			c.Received = append(c.Received, f.task)
		}
		c.Tasks[a] = i
	}
	if c.Kept, err = s.kept.commit(); err != nil {
		return err
	}
	if c.Offsets, err = s.folder.Sync(); err != nil {
		return err
	}
	if err := s.folder.Save(c); err != nil {
		return err
	}
	s.saved, s.savedAt = time.Now(), s.machine.Round()
	return s.folder.Event("saved", map[string]any{"round": s.savedAt})
}

// restore goes on from the last checkpoint; from the beginning if there is none.
func (s *simulation) restore(ctx context.Context) error {
	var c checkpoint
	ok, err := s.folder.Load(&c)
	if err != nil {
		return err
	}
	if !ok {
		return s.folder.OpenTables(run.Offsets{})
	}
	if now := fingerprint(s.Dataset); c.Dataset != now {
		return fmt.Errorf("the run was begun with other data: %s, and now %s", c.Dataset, now)
	}
	if c.Kernel != s.Kernel.Name() {
		return fmt.Errorf("the run was begun with the %s kernels, which give other last bits than %s: set LOADSTAR_KERNEL=%s", c.Kernel, s.Kernel.Name(), c.Kernel)
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
	if err := s.kept.restore(c.Kept); err != nil {
		return err
	}
	if err := s.folder.OpenTables(c.Offsets); err != nil {
		return err
	}
	s.now, s.agenda, s.mase = c.Now, c.Agenda, c.MASE
	s.summary.Steps, s.savedAt = c.Steps, s.machine.Round()
	for a, i := range c.Tasks {
		s.start(ctx, a, c.Received[i])
	}
	return nil
}
