package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"slices"
	"strings"

	"loadstar/internal/disk"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// ending is the part of a run after its last round. It scores the clients and writes the
// results.
type ending struct{ *simulation }

// finish scores all clients on the whole test split and writes the results.
func (s *ending) finish(ctx context.Context) error {
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
	shown := 0 // number of clients whose curves are stored
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

// scoreLast scores all clients with the weights of the last round, if the plan chooses between
// these weights and earlier ones without fine-tuning. Otherwise, it returns nil, because these
// weights are scored anyway, or because no client would use them.
func (s *ending) scoreLast(ctx context.Context) (*run.LastRound, error) {
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

// final writes the weights with which a client is scored to w.w, and writes them to a file if
// no other file in the run's folder contains them.
func (s *ending) final(ctx context.Context, w *worker, i int) error {
	if err := s.tuned(ctx, w, i); err != nil {
		return err
	}
	if w.tuner == nil && !s.setup.Job.ScoreOwn {
		return nil
	}
	return s.writeTuned(w, string(s.scored()[i].id))
}

// writeWeights writes the shared weights and the personal weights of the clients that
// trained. It returns the SHA-256 of the list that sha256sum prints for these files, so
// that users can verify the weights.
func (s *ending) writeWeights(ctx context.Context) (string, error) {
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
	// Sort by file name, like a shell.
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
