package sim

import (
	"context"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// evaluate scores a fixed sample of clients and windows on the validation split.
func (s *simulation) evaluate(ctx context.Context) error {
	clients, newcomers := s.fleet.clients, s.Plan.Evaluate.Sample == "holdout"
	all, listed := s.evaluated()
	if newcomers {
		clients = s.fleet.holdout
		all = min(s.Plan.Evaluate.Clients, len(clients))
		listed = all
	}
	rows := make([]run.Evaluation, all)
	err := s.pool.each(ctx, all, func(w *worker, i int) error {
		at := i * len(clients) / all
		first, err := false, error(nil)
		if newcomers {
			err = s.tuned(ctx, w, at)
		} else {
			first, err = s.join(w, at)
		}
		if err != nil {
			return err
		}
		m := &clients[at]
		score, loss, err := w.scorer.Score(w.w, m.meter, m.windows, series.Validation, s.Plan.Evaluate.Windows, nil)
		if err != nil {
			return err
		}
		p := &score.Overall
		rows[i] = run.Evaluation{
			Round: s.machine.Round(), Client: string(m.id),
			Loss: loss, MAE: p.MAE(), RMSE: p.RMSE(), RelativeMAE: p.RelativeMAE(),
		}
		if !s.setup.KeepsBest() || recipe.Pooled(s.Plan) {
			return nil
		}
		return s.keepBest(w, at, first, p.MAE())
	})
	if err != nil {
		return err
	}
	relative := make([]float64, all)
	for i, r := range rows {
		relative[i] = r.RelativeMAE
	}
	if s.setup.KeepsBest() && recipe.Pooled(s.Plan) {
		if err := s.keepPooledBest(relative); err != nil {
			return err
		}
	}
	sample := make([]float64, listed)
	listedRows := make([]run.Evaluation, listed)
	for i := range sample {
		at := i * all / listed
		if err := s.folder.Evaluations.Append(rows[at]); err != nil {
			return err
		}
		sample[i], listedRows[i] = relative[at], rows[at]
	}
	s.losses = append(s.losses, run.Losses(listedRows)...)
	relative = sample
	s.relative = float64(metric.NewSpread(relative).Median)
	return nil
}

// settled reports whether the number of rounds since the lowest validation loss has reached the
// plan's patience.
func (s *simulation) settled() bool {
	n := len(s.losses)
	if s.Plan.Evaluate.Patience == 0 || n == 0 {
		return false
	}
	best := run.Lowest(s.losses)
	return s.losses[n-1].Round-s.losses[best].Round >= s.Plan.Evaluate.Patience
}

// join loads a client's state to w.kept and assembles in w.w the weights with which it is
// scored. It reports whether the client has not trained yet.
func (s *simulation) join(w *worker, i int) (first bool, err error) {
	if recipe.Pooled(s.Plan) {
		i = 0
	}
	if first, err = s.kept.Load(i, w.kept); err != nil {
		return false, err
	}
	s.setup.Job.Join(w.w, s.sharedWeights(), w.kept, first)
	return first, nil
}

// sharedWeights returns the current shared weights.
func (s *simulation) sharedWeights() []float32 {
	return s.setup.Problem.SharedWeights(s.server.Shared())
}

// scored returns the clients that are scored at the end: the held-out clients, if there are
// any, and otherwise the clients that train.
func (s *simulation) scored() []member {
	if len(s.fleet.holdout) > 0 {
		return s.fleet.holdout
	}
	return s.fleet.clients
}

// tuned writes the weights with which a client is scored to w.w. Depending on the plan, it
// fine-tunes them and chooses among candidates. It starts with the initial personal weights if
// the client never trained.
func (s *simulation) tuned(ctx context.Context, w *worker, i int) error {
	p := s.setup.Problem.Partition
	first := true
	if len(s.fleet.holdout) > 0 {
		clear(w.kept)
		copy(w.kept, s.personal)
		p.Join(w.w, s.sharedWeights(), w.kept[:p.PersonalLen()])
	} else {
		var err error
		if first, err = s.join(w, i); err != nil {
			return err
		}
	}
	if w.tuner == nil {
		return nil
	}
	m := &s.scored()[i]
	c := client.Client{ID: m.id, Data: []series.Examples{m.windows}, Kept: w.kept[:w.client.Kept()], First: first}
	task := s.task(s.Plan.Rounds)
	task.Limits, task.Control = fed.Limits{}, nil // fine-tuning sends nothing
	tuned, err := w.tuner.Tune(ctx, &c, task, s.earlier(w), func(candidate []float32) (float64, error) {
		score, _, err := w.scorer.Score(candidate, m.meter, m.windows, series.Validation, 0, nil)
		return score.Overall.MAE(), err
	})
	if err != nil {
		return err
	}
	copy(w.w, tuned)
	return nil
}
