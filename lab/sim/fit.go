package sim

import (
	"context"
	"fmt"
	"sync/atomic"

	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/series"
)

// fitUnasked fits the personal layers of clients that no round has asked, using their training
// examples and the shared weights of the last round. It stores the layers as if the clients had
// trained. Otherwise, every forecast would fit them again. Layers that do not lower the loss on
// validation examples are not stored.
//
// It does nothing for runs with fine-tuning, which fit every client anyway; for clients with
// their own shared weights, which they lack before their first turn; and for replayed runs,
// which must contain only the fleet's weights.
func (s *ending) fitUnasked(ctx context.Context) error {
	p := s.setup.Problem.Partition
	if p.PersonalLen() == 0 || p.SharedLen() == 0 || recipe.Pooled(s.Plan) || recipe.StoresOwn(s.Plan) || s.setup.KeepsBest() || s.pool.workers[0].tuner != nil || s.Replay != nil || s.OnlyTraining {
		return nil
	}
	var unasked []int
	for i := range s.trainees {
		if !s.kept.Stored(i) {
			unasked = append(unasked, i)
		}
	}
	if len(unasked) == 0 {
		return nil
	}
	s.note("fitting personal layers of %d clients that no round asked", len(unasked))
	var done, better atomic.Int64
	err := s.pool.each(ctx, len(unasked), func(w *worker, k int) error {
		ok, err := s.fit(ctx, w, unasked[k])
		if ok {
			better.Add(1)
		}
		if n := done.Add(1); err == nil && s.Progress != nil {
			s.progress.Lock()
			defer s.progress.Unlock()
			s.Progress(Progress{Round: s.machine.Round(), Rounds: s.Plan.Rounds, Fitted: int(n), Unasked: len(unasked)})
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.folder.Event("fitted", map[string]any{"clients": len(unasked), "better": better.Load()})
}

// fit fits the personal layers of a client, and stores them if they are better than the
// initial ones.
func (s *ending) fit(ctx context.Context, w *worker, i int) (better bool, err error) {
	p, shared := s.setup.Problem.Partition, s.sharedWeights()
	m := &s.fleet.clients[i]
	loss := func(personal []float32) (float64, error) {
		p.Join(w.w, shared, personal)
		_, loss, err := w.scorer.Score(w.w, m.meter, m.windows, series.Validation, s.Plan.Evaluate.Windows, nil)
		return loss, err
	}
	before, err := loss(s.personal)
	if err != nil {
		return false, err
	}
	personal, err := serve.FitTo(ctx, s.Plan, s.setup.Problem, s.Kernel, shared, m.windows, m.id, s.personal, serve.FitSteps)
	if err != nil {
		return false, fmt.Errorf("fit personal layers of client %s: %w", m.id, err)
	}
	after, err := loss(personal)
	if err != nil || !(after < before) {
		return false, err
	}
	kept := s.initialSlot(w)
	copy(kept, personal)
	return true, s.kept.Put(i, kept)
}
