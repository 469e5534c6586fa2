package sim

import (
	"context"

	"loadstar/lab/run"
	"loadstar/series"
)

// Validate simulates a run to the end of its training, and scores the clients that a complete
// run would score, but on the whole validation split. It never reads the test split, so its
// scores may be used to choose between plans. The run in the folder stays unfinished. cpu is
// the CPU time of the workers in this process, in seconds.
func Validate(ctx context.Context, c Config) (rows []run.Evaluation, cpu float64, err error) {
	s, err := trained(ctx, c)
	if err != nil {
		return nil, 0, err
	}
	defer s.close()
	scored := s.scored()
	rows = make([]run.Evaluation, len(scored))
	err = s.pool.each(ctx, len(scored), func(w *worker, i int) error {
		if err := s.tuned(ctx, w, i); err != nil {
			return err
		}
		m := &scored[i]
		score, loss, err := w.scorer.Score(w.w, m.meter, m.windows, series.Validation, 0, nil)
		p := &score.Overall
		rows[i] = run.Evaluation{
			Round: s.machine.Round(), Client: string(m.id),
			Loss: loss, MAE: p.MAE(), RMSE: p.RMSE(), RelativeMAE: p.RelativeMAE(),
		}
		return err
	})
	if err != nil {
		return nil, 0, s.interrupted(ctx, err)
	}
	for _, w := range s.pool.workers {
		cpu += w.cpu.Seconds()
	}
	return rows, cpu, nil
}
