// Package experiment runs many simulations in parallel and tabulates their results. An
// interrupted experiment can be resumed.
package experiment

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"loadstar/fed"
	"loadstar/lab/run"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Trial is one run of an experiment: a plan on a dataset.
type Trial struct {
	Plan    *fed.Plan
	Dataset *series.Dataset
	// DataPath is the path from which Dataset was read, or "".
	DataPath string
	// Part is the name of the experiment's part to which the trial belongs, or "". The part's
	// folder has this name.
	Part string
}

// folder returns the folder of the trial's run, relative to the experiment's folder.
func (t Trial) folder() string {
	return filepath.Join(t.Part, t.Dataset.Name, fmt.Sprintf("%s-%d", t.Plan.Name, t.Plan.Seed))
}

// Experiment is a list of trials and the folder of their runs.
type Experiment struct {
	Dir    string
	Trials []Trial
	Kernel *kernel.Set
	// Parallel is the number of trials that run at the same time. Each trial uses one worker, so
	// no worker waits for another at the end of a round.
	Parallel int
	// Diverging means that the experiment continues when a run diverges, whose summary is then
	// nil. Otherwise, a run that diverges stops the experiment.
	Diverging bool
	// Progress, if not nil, is called with the number of rounds done and the total number
	// of rounds, over all trials.
	Progress func(done, of int)
	// Reuse is a folder whose subfolders may contain finished runs, or "". A trial with the
	// same plan and data as one of these runs is not trained again. Unless Reused is nil, it is
	// called with the folders of the run and of the trial.
	Reuse  string
	Reused func(from, to string)
}

// Rounds returns the total number of rounds of all trials.
func (e *Experiment) Rounds() int {
	n := 0
	for _, t := range e.Trials {
		n += t.Plan.Rounds
	}
	return n
}

// Run runs the trials that are not finished, and returns all summaries in the order of
// the trials.
func (e *Experiment) Run(ctx context.Context) ([]*run.Summary, error) {
	var (
		summaries = make([]*run.Summary, len(e.Trials))
		mu        sync.Mutex
		done      = make([]int, len(e.Trials))
	)
	report := func(i, rounds int) {
		mu.Lock()
		defer mu.Unlock()
		done[i] = rounds
		if e.Progress != nil {
			sum := 0
			for _, n := range done {
				sum += n
			}
			e.Progress(sum, e.Rounds())
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(e.Parallel, 1))
	for i, t := range e.Trials {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			s, err := e.trial(ctx, t, func(p sim.Progress) { report(i, p.Round) })
			if err != nil && !(e.Diverging && errors.Is(err, fed.ErrDiverged)) {
				return fmt.Errorf("%s: %w", t.folder(), err)
			}
			summaries[i] = s
			report(i, t.Plan.Rounds)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, context.Cause(ctx) // the first failure, or the reason why ctx was cancelled
	}
	return summaries, nil
}

func (e *Experiment) trial(ctx context.Context, t Trial, progress func(sim.Progress)) (*run.Summary, error) {
	c := sim.Config{
		Plan: t.Plan, Dataset: t.Dataset, DataPath: t.DataPath, Dir: filepath.Join(e.Dir, t.folder()), Kernel: e.Kernel,
		Workers: 1, Memory: 512 << 20, Save: 30 * time.Second, Progress: progress,
	}
	s, state, err := sim.Look(c)
	switch {
	case err != nil:
		return nil, err
	case state == sim.Finished:
		return s, nil
	case state == sim.Empty:
		if s, err := e.reuse(t, c.Dir); s != nil || err != nil {
			return s, err
		}
	}
	c.Resume = state == sim.Begun
	return sim.Run(ctx, c)
}
