package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/internal/disk"
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
		if !s.setup.KeepsBest() || s.pooled() {
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
	if s.setup.KeepsBest() && s.pooled() {
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

// settled reports whether the validation loss has not reached a new lowest value for as many
// rounds as the plan's patience.
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
	if s.pooled() {
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

// finish scores all clients on the whole test split and writes the results.
func (s *simulation) finish(ctx context.Context) error {
	if err := s.folder.Event("trained", map[string]any{"rounds": s.machine.Round(), "steps": s.summary.Steps}); err != nil {
		return err
	}
	if err := s.fitUnasked(ctx); err != nil {
		return err
	}
	scored := s.scored()
	start := stopwatch()
	rows := make([]run.Client, len(scored))
	last, err := s.scoreLast(ctx)
	if err != nil {
		return err
	}
	s.summary.Last = last
	fleet := make([]metric.Scores, len(scored))
	details := make([]detail, len(scored))
	shown := 0 // clients whose curves are kept
	if s.Plan.Evaluate.Forecasts > 0 {
		first := scored[0].meter
		shown = run.CurveClients(len(first.Load) - s.setup.Problem.Framer.BeforeTest(first))
	}
	err = s.pool.each(ctx, len(scored), func(w *worker, i int) error {
		if err := s.final(ctx, w, i); err != nil {
			return err
		}
		m, d := &scored[i], &details[i]
		d.begin(s.setup.Problem.Framer, s.Dataset.Interval, m.meter, w.scorer.Levels(), sampled(i, len(scored), s.Plan.Evaluate.Forecasts))
		if sampled(i, len(scored), shown) {
			d.beginCurves(s.Plan.Evaluate.Stride.Steps())
		}
		score, loss, err := w.scorer.Serve(w.w, m.meter, m.windows, d.add)
		p := &score.Overall
		rows[i] = run.Client{
			Client: string(m.id), Level: d.level, Spread: d.spread, Examples: examples(m.windows), Targets: p.N(), Loss: loss,
			MAE: p.MAE(), RMSE: p.RMSE(), NMAE: p.NMAE(), MAPE: p.MAPE(), SMAPE: p.SMAPE(), RelativeMAE: p.RelativeMAE(), ModelRelativeMAE: score.Model.RelativeMAE(),
		}
		fleet[i] = addQuantiles(&rows[i], &score)
		d.peaks.bias = p.Bias()
		return err
	})
	if err == nil && shown > 0 {
		err = s.drawExtremes(ctx, scored, rows, details)
	}
	if err != nil {
		return err
	}
	if s.summary.Weights, err = s.writeWeights(ctx); err != nil {
		return err
	}
	if err := s.writeScaling(); err != nil {
		return err
	}
	if err := s.writeStates(ctx, scored); err != nil {
		return err
	}
	for _, w := range s.pool.workers {
		s.summary.Seconds.CPU += w.cpu.Seconds()
	}
	summarizeScores(&s.summary, metric.NewFleet(fleet), s.machine.Round(), start())
	s.summary.RelativeMAE.Reference = string(s.pool.workers[0].scorer.Reference.For(s.setup.Problem.Framer.Layout()))
	s.summary.Corrected = s.Plan.Evaluate.Correct
	s.summary.Zone, s.summary.Interval = s.Dataset.Clock.String(), s.Dataset.Seconds()
	results := combine(details)
	addPeaks(&results, details)
	addCalibration(&results, details, s.pool.workers[0].scorer.Levels())
	results.Clients, results.Levels = rows, s.pool.workers[0].scorer.Levels()
	if err := s.folder.Finish(results, &s.summary); err != nil {
		return err
	}
	return s.folder.Event("finished", &s.summary)
}

// scoreLast scores all clients with the weights of the last round, if the plan chooses
// between them and earlier ones without fine-tuning. Otherwise it returns nil: these are the
// weights that are scored anyway, or no client would use them.
func (s *simulation) scoreLast(ctx context.Context) (*run.LastRound, error) {
	tune := s.Plan.Evaluate.FineTune
	if !s.setup.KeepsBest() || len(s.fleet.holdout) > 0 || tune.Steps > 0 || tune.Epochs > 0 {
		return nil, nil
	}
	mae, relative := make([]float64, len(s.fleet.clients)), make([]float64, len(s.fleet.clients))
	err := s.pool.each(ctx, len(s.fleet.clients), func(w *worker, i int) error {
		if _, err := s.join(w, i); err != nil {
			return err
		}
		m := &s.fleet.clients[i]
		score, _, err := w.scorer.Score(w.w, m.meter, m.windows, series.Test, 0, nil)
		mae[i], relative[i] = score.Overall.MAE(), score.Overall.RelativeMAE()
		return err
	})
	return &run.LastRound{MAE: metric.NewSpread(mae).Mean, RelativeMAE: metric.NewSpread(relative).Mean}, err
}

// final writes the weights with which a client is scored to w.w, and to a file if the run's
// folder has no other with them.
func (s *simulation) final(ctx context.Context, w *worker, i int) error {
	if err := s.tuned(ctx, w, i); err != nil {
		return err
	}
	if w.tuner == nil && !s.setup.Job.ScoreOwn {
		return nil
	}
	return s.writeTuned(w, string(s.scored()[i].id))
}

// scored returns the clients that are scored at the end: the held-out ones if there are any.
func (s *simulation) scored() []member {
	if len(s.fleet.holdout) > 0 {
		return s.fleet.holdout
	}
	return s.fleet.clients
}

// tuned writes the weights with which a client is scored to w.w. It fine-tunes them and
// chooses among candidates if the plan says so. A client that never trained starts from
// the initial personal weights.
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

// writeWeights writes the shared weights and the personal weights of the clients that
// trained. It returns the SHA-256 of the list that sha256sum prints for these files, so
// that users can verify the weights.
func (s *simulation) writeWeights(ctx context.Context) (string, error) {
	p := s.setup.Problem.Partition
	sums := make([]string, len(s.trainees)+1)
	write := func(path, name string, content func(io.Writer) error) (string, error) {
		h := sha256.New()
		err := disk.Write(path, func(to *os.File) error { return content(io.MultiWriter(to, h)) })
		return hex.EncodeToString(h.Sum(nil)) + "  " + name + "\n", err
	}
	var err error
	sums[0], err = write(s.folder.Shared(), "shared.safetensors", func(to io.Writer) error {
		return s.setup.Problem.WriteShared(to, s.server.Shared(), s.Plan.Name, s.server.Version())
	})
	if err != nil {
		return "", err
	}
	if p.PersonalLen() > 0 {
		err = s.pool.each(ctx, len(s.trainees), func(w *worker, i int) error {
			first, err := s.kept.Load(i, w.kept)
			if err != nil || first {
				return err
			}
			p.Join(w.w, s.sharedWeights(), w.kept[:p.PersonalLen()])
			path, name, err := s.folder.Personal(string(s.trainees[i].id))
			if err != nil {
				return err
			}
			sums[i+1], err = write(path, name, func(to io.Writer) error {
				return s.setup.Problem.Model.WriteWeights(to, w.w, p.Personal(), map[string]string{"client": string(s.trainees[i].id), "plan": s.Plan.Name})
			})
			return err
		})
		if err != nil {
			return "", err
		}
	}
	// Sort by file name, as a shell lists the files.
	slices.SortFunc(sums[1:], func(a, b string) int { return strings.Compare(name(a), name(b)) })
	h := sha256.New()
	for _, line := range sums {
		h.Write([]byte(line))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// name returns the file name in a line of sha256sum's output.
func name(line string) string {
	_, name, _ := strings.Cut(line, "  ")
	return name
}
