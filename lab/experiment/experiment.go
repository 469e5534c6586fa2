// Package experiment runs many simulations, as many at a time as there are cores,
// and goes on where it was interrupted.
package experiment

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/lab/run"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Trial is one plan on one dataset.
type Trial struct {
	Plan    *fed.Plan
	Dataset *series.Dataset
	// Part is the folder of the part of the experiment that the trial is of, if it
	// has parts.
	Part string
}

// folder is where a trial's run is, within the experiment's.
func (t Trial) folder() string {
	return filepath.Join(t.Part, t.Dataset.Name, fmt.Sprintf("%s-%d", t.Plan.Name, t.Plan.Seed))
}

// Experiment is a list of trials and the folder of their runs.
type Experiment struct {
	Dir    string
	Trials []Trial
	Kernel *kernel.Set
	// Parallel is how many trials run at a time, each with one worker: then no
	// worker ever waits for another.
	Parallel int
	// Diverging says that a run whose weights grow without bound is a result: it has
	// no summary. Otherwise it ends the experiment.
	Diverging bool
	// Progress is called with the rounds done, of all trials; it may be nil.
	Progress func(done, of int)
}

// Rounds returns how many rounds there are in all.
func (e *Experiment) Rounds() int {
	n := 0
	for _, t := range e.Trials {
		n += t.Plan.Rounds
	}
	return n
}

// Run runs what is not finished yet, and returns the summaries in the order of the
// trials.
func (e *Experiment) Run(ctx context.Context) ([]*run.Summary, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		summaries = make([]*run.Summary, len(e.Trials))
		next      = make(chan int)
		wg        sync.WaitGroup
		mu        sync.Mutex
		done      = make([]int, len(e.Trials))
	)
	tell := func(i, rounds int) {
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
	for range max(e.Parallel, 1) {
		wg.Go(func() {
			for i := range next {
				s, err := e.trial(ctx, e.Trials[i], func(p sim.Progress) { tell(i, p.Round) })
				if err != nil && !(e.Diverging && errors.Is(err, fed.ErrDiverged)) {
					cancel(fmt.Errorf("%s: %w", e.Trials[i].folder(), err))
					return
				}
				summaries[i] = s
				tell(i, e.Trials[i].Plan.Rounds)
			}
		})
	}
feed:
	for i := range e.Trials {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return summaries, nil
}

func (e *Experiment) trial(ctx context.Context, t Trial, progress func(sim.Progress)) (*run.Summary, error) {
	c := sim.Config{
		Plan: t.Plan, Dataset: t.Dataset, Dir: filepath.Join(e.Dir, t.folder()), Kernel: e.Kernel,
		Workers: 1, Memory: 512 << 20, Save: 30 * time.Second, Progress: progress,
	}
	s, state, err := sim.Look(c)
	switch {
	case err != nil:
		return nil, err
	case state == sim.Finished:
		return s, nil
	}
	c.Resume = state == sim.Begun
	return sim.Run(ctx, c)
}
