// Package sim trains a fleet in one process: the product's own round logic,
// aggregation and local training, driven by a virtual clock. Clients have speeds,
// links, delays and failures of their own there, and take no longer than their
// gradients do here.
//
// What happens when depends on the plan alone, never on how long something took
// here: so a run gives the same bytes with any number of workers, and however often
// it was interrupted.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/exact"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/forecast"
	"loadstar/lab/kept"
	"loadstar/lab/run"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Config is a run to be simulated.
type Config struct {
	Plan    *fed.Plan
	Dataset *series.Dataset
	// Dir is the run's folder. Resume goes on with the run that is there.
	Dir    string
	Resume bool
	Kernel *kernel.Set
	// Workers is how many clients are trained at a time.
	Workers int
	// Memory bounds what clients keep in memory between rounds, in bytes; the rest
	// is on disk.
	Memory int64
	// Save is the least time between checkpoints; 0 saves after every round.
	Save time.Duration
	// Progress is called before the first round and after every one, if it is not nil.
	Progress func(Progress)
}

// Progress is how far a run has come.
type Progress struct {
	Round, Rounds int
	Loss          float64 // of training, in the last round
	MASE          float64 // median over clients at the last evaluation, or NaN
}

// Run simulates a run to its end. If it is interrupted, what it saved last stands.
func Run(ctx context.Context, c Config) (*run.Summary, error) {
	plan, err := recipe.Write(c.Plan)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	s, err := newSimulation(c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if c.Resume {
		s.folder, err = run.Reopen(c.Dir, plan)
	} else {
		s.folder, err = run.Create(c.Dir, plan)
	}
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.summary.Seconds.Prepare = time.Since(start).Seconds()
	if err := s.train(ctx); err != nil {
		return nil, err
	}
	if err := s.saving.wait(); err != nil {
		return nil, err
	}
	if err := s.finish(ctx); err != nil {
		return nil, s.interrupted(ctx, err)
	}
	return &s.summary, nil
}

// simulation is a run in progress.
type simulation struct {
	Config
	setup *setup.Setup
	fleet *fleet
	// trainees are the machine's clients.
	trainees []trainee
	pace     pace
	personal []float32 // initial personal weights

	machine *round.Machine
	server  *round.Server
	own     *client.ServerData // nil unless the aggregator needs it
	pool    *pool
	kept    *kept.Store
	folder  *run.Folder

	now    time.Duration
	agenda agenda
	// flights are the clients under way, if they may return after their round.
	flights map[round.Assignment]*flight
	fold    *round.Fold

	summary   run.Summary
	mase      float64 // at the last evaluation
	steps     int64   // in this process
	saved     time.Time
	savedAt   atomic.Int64 // the round
	saving    background
	firstHere int // the round that this process began with
}

// flight is one client's training, begun at its virtual start and needed at its
// virtual end.
type flight struct {
	task   fed.Task
	update fed.Update
	kept   []float32
	err    error
	done   chan struct{}
}

func newSimulation(c Config) (*simulation, error) {
	c.Workers = max(c.Workers, 1)
	s := &simulation{Config: c, flights: map[round.Assignment]*flight{}, mase: math.NaN()}
	problem, err := recipe.Frame(c.Plan, c.Dataset)
	if err != nil {
		return nil, err
	}
	if s.fleet, err = newFleet(c.Plan, problem, c.Dataset, c.Workers); err != nil {
		return nil, err
	}
	s.trainees = s.fleet.trainees(recipe.Pooled(c.Plan))
	if s.setup, err = setup.New(c.Plan, problem, len(s.trainees)); err != nil {
		return nil, err
	}
	s.machine, s.server = s.setup.NewMachine(), s.setup.NewServer()
	_, s.personal = s.setup.InitialWeights()
	if s.own, err = s.setup.NewServerData(c.Kernel, windowsOf(s.fleet.own)); err != nil {
		return nil, err
	}
	p, traffic := c.Plan, s.setup.Traffic()
	s.pace = pace{
		Simulate: p.Simulate, seed: p.Seed, period: time.Duration(p.Schedule.Period),
		bytes: traffic.Down + traffic.Up,
	}
	s.fold = round.NewFold(s.setup.Rules)
	workers := make([]*worker, c.Workers)
	for i := range workers {
		workers[i] = s.newWorker()
	}
	s.pool = newPool(workers)
	s.summary = run.Summary{
		Plan: p.Name, Algorithm: p.Algorithm, Dataset: c.Dataset.Name, Generated: c.Dataset.Generated,
		Data: fingerprint(c.Dataset), Kernel: c.Kernel.Name(), Clients: len(s.fleet.clients), LeftOut: s.fleet.leftOut,
		Down: traffic.Down, Up: traffic.Up,
	}
	return s, nil
}

func (s *simulation) newWorker() *worker {
	w := &worker{
		client: s.setup.NewWorker(s.Kernel),
		tuner:  s.setup.NewTuner(s.Kernel),
		scorer: forecast.NewScorer(s.setup.Problem.Model, s.Kernel, s.setup.Problem.Loss),
		fold:   round.NewFold(s.setup.Rules),
		w:      make([]float32, s.setup.Problem.Model.Net().Weights()),
	}
	w.kept = make([]float32, w.client.Kept())
	return w
}

func (s *simulation) close() {
	_ = s.saving.wait() // callers that need the checkpoint have waited for it before
	if s.pool != nil {
		s.pool.close()
	}
	if s.kept != nil {
		_ = s.kept.Close() // what a resumed run needs was synced with its checkpoint
	}
	if s.folder != nil {
		_ = s.folder.Close() // checkpoints and the end of a run have flushed the tables
	}
}

// begin opens what the run keeps, and takes up the last checkpoint if there is one.
func (s *simulation) begin(ctx context.Context) error {
	initial := s.setup.InitialKept(s.pool.workers[0].client)
	var err error
	if s.kept, err = kept.Open(s.folder.Kept(), len(s.trainees), len(initial), initial, s.Memory); err != nil {
		return err
	}
	if s.Resume {
		if err := s.restore(ctx); err != nil {
			return err
		}
	}
	s.firstHere, s.saved = s.machine.Round(), time.Now()
	return s.folder.Event("begin", map[string]any{
		"plan": s.Plan.Name, "dataset": s.Dataset.Name, "clients": len(s.fleet.clients), "left_out": s.fleet.leftOut,
		"round": s.firstHere, "rounds": s.Plan.Rounds, "workers": s.Workers, "kernel": s.Kernel.Name(),
	})
}

// train goes through virtual time until all rounds are closed.
func (s *simulation) train(ctx context.Context) error {
	defer s.land()
	start := time.Now()
	s.tell(math.NaN())
	for s.machine.Round() < s.Plan.Rounds {
		if err := ctx.Err(); err != nil {
			return s.interrupted(ctx, err)
		}
		s.ask(ctx)
		if err := s.advance(); err != nil {
			return err
		}
		closed, ok := s.machine.Close(s.now)
		if !ok {
			continue
		}
		if err := s.merge(ctx, closed); err != nil {
			return s.interrupted(ctx, err)
		}
		if every := s.Plan.Evaluate.Every; every > 0 && s.machine.Round()%every == 0 {
			if err := s.evaluate(ctx); err != nil {
				return s.interrupted(ctx, err)
			}
		}
		if time.Since(s.saved) >= s.Save || s.machine.Round() == s.Plan.Rounds {
			if err := s.save(); err != nil {
				return err
			}
		}
	}
	s.land() // workers must not be asked for their times while they are at work
	summarizeTraining(&s.summary, time.Since(start), s.steps, s.pool.workers)
	return nil
}

// Interrupted is the error of a run that was stopped from outside.
type Interrupted struct {
	Round, Rounds int // where it was
	Saved         int // how many rounds it need not do again
	cause         error
}

func (e *Interrupted) Error() string {
	return fmt.Sprintf("stopped in round %d of %d; --resume goes on from round %d", e.Round, e.Rounds, e.Saved+1)
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

// land waits for what is in the air and will not be needed, since it uses the
// workers.
func (s *simulation) land() {
	for _, f := range s.flights {
		<-f.done
	}
	clear(s.flights)
}

// ask sends out whoever is to be asked now.
func (s *simulation) ask(ctx context.Context) {
	asked := s.machine.Ask(s.now)
	if len(asked) == 0 {
		return
	}
	task := s.server.Task(s.machine.Round())
	for _, a := range asked {
		t := &s.trainees[a.Client]
		e := s.pace.trip(s.now, a, t.id, recipe.StepsOf(s.Plan, t.examples))
		s.agenda.add(e)
		if s.setup.Parts.Scheduler.Carries() && !e.Lost {
			s.start(ctx, a, task)
		}
	}
}

// start trains a client that may return in a later round. It is needed when its
// time has come; until then others go on beside it.
func (s *simulation) start(ctx context.Context, a round.Assignment, task fed.Task) {
	f := &flight{task: task, done: make(chan struct{})}
	s.flights[a] = f
	s.pool.todo <- func(w *worker) {
		defer close(f.done)
		f.kept = make([]float32, len(w.kept))
		f.err = s.turn(ctx, w, a.Client, task, f.kept, &f.update)
	}
}

// advance moves the clock to the next event, and handles all events of that time.
func (s *simulation) advance() error {
	at, ok := s.agenda.next()
	if wake, set := s.machine.Wake(s.now); set && (!ok || wake < at) {
		at, ok = wake, true
	}
	if !ok {
		return fmt.Errorf("round %d: nobody is under way, and nobody is left to ask", s.machine.Round())
	}
	s.now = max(s.now, at)
	for e, ok := s.agenda.take(s.now); ok; e, ok = s.agenda.take(s.now) {
		if e.Lost {
			s.machine.Lose(e.For)
		} else {
			s.machine.Return(e.For) // a verdict of Closed is the late client's to hear
		}
	}
	return nil
}

// turn trains a client into kept, which is not stored yet, and u.
func (s *simulation) turn(ctx context.Context, w *worker, i int, task fed.Task, kept []float32, u *fed.Update) error {
	first, err := s.kept.Load(i, kept)
	if err != nil {
		return err
	}
	return s.trainOn(ctx, w, i, task, kept, first, u)
}

func (s *simulation) trainOn(ctx context.Context, w *worker, i int, task fed.Task, kept []float32, first bool, u *fed.Update) error {
	c := client.Client{ID: s.trainees[i].id, Data: s.trainees[i].data, Kept: kept, First: first}
	return w.client.Train(ctx, &c, task, u)
}

// turnInPlace trains a client whose update will be counted, so that what it keeps
// may change at once: it does so where it lies, if it lies in memory.
func (s *simulation) turnInPlace(ctx context.Context, w *worker, i int, task fed.Task) error {
	kept, first, err := s.kept.Lend(i)
	if err != nil {
		return err
	}
	if kept == nil {
		if err := s.turn(ctx, w, i, task, w.kept, &w.update); err != nil {
			return err
		}
		return s.kept.Put(i, w.kept)
	}
	defer s.kept.Return(i)
	return s.trainOn(ctx, w, i, task, kept, first, &w.update)
}

// result is what a round's row needs of one client.
type result struct {
	loss  float64
	steps int
}

// merge trains whoever was counted, unless that is done, and moves the shared
// weights.
func (s *simulation) merge(ctx context.Context, o round.Outcome) error {
	results := make([]result, len(o.Counted))
	var err error
	if s.setup.Parts.Scheduler.Carries() {
		err = s.collect(o.Counted, results)
	} else {
		err = s.trainAll(ctx, o, results)
	}
	if err != nil {
		return err
	}
	if o.Merged {
		if s.own != nil {
			if err := s.own.Begin(ctx, s.server.Task(o.Round)); err != nil {
				return err
			}
		}
		var data fed.ServerData
		if s.own != nil {
			data = s.own
		}
		if err := s.server.Merge(o.Round, s.fold, data); err != nil {
			return err
		}
	}
	s.fold.Reset()
	return s.record(o, results)
}

// trainAll trains the clients of a round side by side. Each worker adds up what it
// trained, so no update is kept but where the aggregator needs it.
func (s *simulation) trainAll(ctx context.Context, o round.Outcome, results []result) error {
	task := s.server.Task(o.Round)
	each := s.setup.Parts.Needs.EachUpdate
	err := s.pool.each(ctx, len(o.Counted), func(w *worker, i int) error {
		c := o.Counted[i].Client
		if err := s.turnInPlace(ctx, w, c, task); err != nil {
			return err
		}
		results[i] = result{w.update.TrainLoss, w.update.Steps}
		if err := s.count(w.fold, &w.update, task.Shared); err != nil {
			return err
		}
		if each {
			w.update = fed.Update{} // the fold keeps its slices
		}
		return nil
	})
	for _, w := range s.pool.workers {
		if err == nil {
			err = s.fold.Join(w.fold)
		}
		w.fold.Reset()
	}
	return err
}

// collect takes the flights that have arrived.
func (s *simulation) collect(counted []round.Assignment, results []result) error {
	for i, a := range counted {
		f := s.flights[a]
		<-f.done
		delete(s.flights, a)
		if f.err != nil {
			return f.err
		}
		results[i] = result{f.update.TrainLoss, f.update.Steps}
		if err := s.count(s.fold, &f.update, f.task.Shared); err != nil {
			return err
		}
		if err := s.kept.Put(a.Client, f.kept); err != nil {
			return err
		}
	}
	return nil
}

// count adds an update, or says what to do about one that cannot be counted: a fleet
// refuses it and goes on, but who simulates wants to know.
func (s *simulation) count(f *round.Fold, u *fed.Update, from []float32) error {
	err := f.Add(u, from)
	if errors.Is(err, exact.ErrBound) || errors.Is(err, exact.ErrFinite) {
		return fmt.Errorf("the update of client %s is refused: %w; unless server.bound is too small, %w", u.Client, err, fed.ErrDiverged)
	}
	return err
}

// record writes a round's row and tells how far the run is.
func (s *simulation) record(o round.Outcome, results []result) error {
	traffic := s.setup.Traffic()
	row := run.Round{
		Round: o.Round, Version: s.server.Version(), Outcome: "merged",
		Opened: o.Opened.Seconds(), Closed: o.Closed.Seconds(),
		Asked: o.Asked, Counted: len(o.Counted), Late: o.Late, Lost: o.Lost,
		Down: traffic.Down * int64(o.Asked), Up: traffic.Up * int64(len(o.Counted)),
	}
	if !o.Merged {
		row.Outcome = "abandoned"
	}
	for i, r := range results {
		stale := o.Version - o.Counted[i].Version
		row.Staleness += float64(stale)
		row.Stalest = max(row.Stalest, stale)
		row.Loss += r.loss
		row.Steps += r.steps
	}
	n := float64(len(results)) // 0/0 is NaN, and no figure
	row.Staleness /= n
	row.Loss /= n
	s.steps += int64(row.Steps)
	s.summary.Steps += int64(row.Steps)
	if err := s.folder.Rounds.Append(row); err != nil {
		return err
	}
	s.tell(row.Loss)
	return nil
}

// tell says how far the run is.
func (s *simulation) tell(loss float64) {
	if s.Progress != nil {
		s.Progress(Progress{Round: s.machine.Round(), Rounds: s.Plan.Rounds, Loss: loss, MASE: s.mase})
	}
}
