// Package sim simulates a fleet in one process. It uses the round logic, aggregation and
// local training of the product, driven by a virtual clock. Each client has its own
// simulated speed, bandwidth, delays and failures. Only the computation takes real time.
//
// The order of events depends only on the plan, never on real time. A run therefore
// produces identical bytes with any number of workers and after any number of
// interruptions.
package sim

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/mask"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/feature"
)

// Config describes a run to simulate.
type Config struct {
	Plan    *fed.Plan
	Dataset *series.Dataset
	// DataPath is the path from which Dataset was read, for the summary, or "".
	DataPath string
	// ServerData, if not nil, is the server's data, as in a fleet. In that case, the plan's
	// server.clients has no effect, and all clients of Dataset train.
	ServerData *series.Dataset
	// Dir is the run's folder. If Resume is true, the run in that folder continues.
	Dir    string
	Resume bool
	Kernel *kernel.Set
	// Workers is the number of clients that train in parallel.
	Workers int
	// Memory limits the memory for client state between rounds, in bytes. State that does not
	// fit in memory is on disk.
	Memory int64
	// Save is the minimum time between checkpoints; 0 saves after every round.
	Save time.Duration
	// Progress, if not nil, is called before the first round and after every round.
	Progress func(Progress)
	// Note, if not nil, is called with a description of each action that the plan does not
	// mention.
	Note func(string)
	// Replay, if not nil, is the fleet's run that the simulation repeats.
	Replay *Replay
	// If OnlyTraining is set, clients that no round asked are not fitted. Benchmarks set it
	// because fitting 10,000 clients takes longer than the measured rounds.
	OnlyTraining bool
	// hostile, if not nil, replaces a client's update. Only tests set it.
	hostile func(fed.Task, *fed.Update)
}

// note reports actions of the run that the plan does not mention.
func (c *Config) note(format string, args ...any) {
	if c.Note != nil {
		c.Note(fmt.Sprintf(format, args...))
	}
}

// Replay contains the inputs of a fleet's run in addition to the plan and the data.
type Replay struct {
	Run string // name of the run
	// Secret is the secret that all agents share. It determines which examples their clients
	// draw.
	Secret [32]byte
	// Blocks means that the agents' policy sets whole_blocks.
	Blocks bool
	// Directions is the seed of the random vectors with which the keeper of a private run
	// compared results.
	Directions mask.Seed
}

// Progress is what Config.Progress receives: how far a run has come, and its latest errors.
type Progress struct {
	Round, Rounds int
	Loss          float64 // training loss of the last round
	RelativeMAE   float64 // median over clients at the last evaluation, or NaN
	// Unasked is the number of clients that no round asked, and Fitted the number of those whose
	// personal layers have been fitted. Unasked is 0 before the last round.
	Fitted, Unasked int
}

// Run simulates a run to its end. After an interruption, the run can be resumed from its
// last checkpoint.
func Run(ctx context.Context, c Config) (*run.Summary, error) {
	s, err := trained(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := (&ending{s}).finish(ctx); err != nil {
		return nil, s.interrupted(ctx, err)
	}
	return &s.summary, nil
}

// trained simulates all rounds of a run. The caller must close the simulation.
func trained(ctx context.Context, c Config) (s *simulation, err error) {
	if c.Plan, err = recipe.Resolve(c.Plan, c.Dataset.Interval); err != nil {
		return nil, err
	}
	start := time.Now()
	if s, err = newSimulation(c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	plan, err := recipe.Write(s.Plan)
	if err != nil {
		return s, err
	}
	if c.Resume {
		s.folder, err = run.Reopen(c.Dir, plan, c.upgradePlan)
	} else {
		s.folder, err = run.Create(c.Dir, plan)
	}
	if err != nil {
		return s, err
	}
	if err := s.begin(ctx); err != nil {
		return s, err
	}
	s.summary.Seconds.Prepare = time.Since(start).Seconds()
	if err := s.train(ctx); err != nil {
		return s, err
	}
	return s, s.saving.wait()
}

// simulation contains the state of a run in progress.
type simulation struct {
	Config
	setup *setup.Setup
	fleet *fleet
	// trainees contains the clients that can train, in the order of their numbers in the
	// round machine.
	trainees []trainee
	chosen   bool // the plan has no cohort, and the fleet is large
	timing   timing
	personal []float32 // initial personal weights

	machine *round.Machine
	server  *round.Server
	own     *client.ServerData // nil unless the aggregator needs it
	pool    *pool
	kept    *Kept
	folder  *run.Folder

	now    time.Duration
	events eventQueue
	// flights contains the trainings in progress, if clients may return after their round.
	flights map[round.Assignment]*flight
	fold    *round.Fold

	summary    run.Summary
	relative   float64 // median relative MAE at the last evaluation
	losses     []run.Loss
	steps      int64 // gradient steps in this process
	saved      time.Time
	savedAt    atomic.Int64 // rounds done at the last checkpoint
	saving     background
	startRound int // first round of this process
	startFile  []byte
	startSum   string // SHA-256 of startFile
	progress   sync.Mutex
}

// flight is the training of one client in the background. It must be done when the
// client's return event is due.
type flight struct {
	task   fed.Task
	update fed.Update
	kept   []float32
	err    error
	done   chan struct{}
}

func newSimulation(c Config) (*simulation, error) {
	c.Workers = max(c.Workers, 1)
	s := &simulation{Config: c, flights: map[round.Assignment]*flight{}, relative: math.NaN()}
	problem, err := recipe.Frame(c.Plan, c.Dataset)
	if err != nil {
		return nil, err
	}
	if c.Replay != nil && c.Replay.Blocks {
		problem.EndAtBlocks()
		if err := problem.Open(c.Dataset); err != nil {
			return nil, err
		}
	}
	// Recomputing the features of a client takes longer than training it for a round.
	problem.LimitCache(max(2*c.Memory, feature.DefaultCache))
	if s.fleet, err = newFleet(c.Plan, problem, c.Dataset, c.ServerData == nil, c.Workers); err != nil {
		return nil, err
	}
	s.trainees = s.fleet.trainees(recipe.Pooled(c.Plan))
	c.Plan, s.chosen = recipe.Sized(c.Plan, len(s.trainees))
	s.Plan = c.Plan
	if s.setup, err = setup.New(c.Plan, problem, len(s.trainees)); err != nil {
		return nil, err
	}
	if c.Replay != nil {
		if s.setup, err = s.setup.OfAgent(c.Replay.Secret); err != nil {
			return nil, err
		}
	}
	if s.startFile, err = s.readStart(); err != nil {
		return nil, err
	}
	s.machine, s.server = s.setup.NewMachine(), s.setup.NewServer()
	_, s.personal = s.setup.InitialWeights()
	if s.own, err = s.newServerData(); err != nil {
		return nil, err
	}
	p, traffic := c.Plan, s.setup.Traffic()
	s.timing = timing{
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
		Data: c.fingerprint(), DataPath: c.DataPath, Kernel: c.Kernel.Name(), Clients: len(s.fleet.clients), LeftOut: s.fleet.leftOut,
		Down: traffic.Down, Up: traffic.Up, Start: s.startSum,
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
	w.scorer.Reference, w.scorer.Correct = forecast.Reference(s.Plan.Evaluate.Reference), s.Plan.Evaluate.Correct
	w.scorer.Stride = s.Plan.Evaluate.Stride.Steps()
	w.kept = make([]float32, s.slot(w))
	return w
}

func (s *simulation) close() {
	_ = s.saving.wait() // callers that need the checkpoint have already waited
	if s.pool != nil {
		s.pool.close()
	}
	if s.kept != nil {
		_ = s.kept.Close() // the last checkpoint is already on disk
	}
	if s.folder != nil {
		_ = s.folder.Close() // the tables are already flushed
	}
}

// begin opens the store of client state and, if the run is resumed, restores the last
// checkpoint.
func (s *simulation) begin(ctx context.Context) error {
	err := s.prepareStart(ctx)
	if err != nil {
		return err
	}
	initial := s.initialSlot(s.pool.workers[0])
	if s.kept, err = OpenKept(s.folder.Kept(), len(s.trainees), len(initial), initial, s.Memory); err != nil {
		return err
	}
	if s.Resume {
		if err := s.restore(ctx); err != nil {
			return err
		}
	}
	s.startRound, s.saved = s.machine.Round(), time.Now()
	if s.chosen {
		s.note("%d clients of %d train in each round, because the plan sets no schedule.cohort and there are more than %d", s.setup.Parts.Turns, len(s.trainees), recipe.LargeFleet)
	}
	return s.folder.Event("begin", map[string]any{
		"plan": s.Plan.Name, "dataset": s.Dataset.Name, "clients": len(s.fleet.clients), "left_out": s.fleet.leftOut,
		"round": s.startRound, "rounds": s.Plan.Rounds, "workers": s.Workers, "kernel": s.Kernel.Name(),
		"cohort": s.setup.Parts.Turns, "cohort_chosen": s.chosen,
	})
}

// train simulates all remaining rounds.
func (s *simulation) train(ctx context.Context) error {
	defer s.drain()
	start := time.Now()
	s.reportProgress(math.NaN())
	for s.machine.Round() < s.Plan.Rounds && !s.settled() {
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
	s.drain() // the workers' times must not be read while they train
	summarizeTraining(&s.summary, time.Since(start), s.steps, s.pool.workers)
	return nil
}

// drain waits until all trainings in flight have ended, because they use the workers.
// Their results are not needed.
func (s *simulation) drain() {
	for _, f := range s.flights {
		<-f.done
	}
	clear(s.flights)
}

// ask asks the clients that the round machine selects now to train.
func (s *simulation) ask(ctx context.Context) {
	asked := s.machine.Ask(s.now)
	if len(asked) == 0 {
		return
	}
	task := s.task(s.machine.Round())
	for _, a := range asked {
		t := &s.trainees[a.Client]
		e := s.timing.roundTrip(s.now, a, t.id, recipe.StepsOf(s.Plan, t.examples))
		s.events.add(e)
		if s.setup.Parts.Scheduler.Carries() && !e.Lost {
			s.start(ctx, a, task)
		}
	}
}

func (s *simulation) task(round int) fed.Task {
	t := s.server.Task(round)
	if s.Replay != nil {
		t.Run = s.Replay.Run
	}
	return t
}

// start starts the training of a client that may return in a later round. The training runs in
// the background, and must end before the client's return event is due.
func (s *simulation) start(ctx context.Context, a round.Assignment, task fed.Task) {
	f := &flight{task: task, done: make(chan struct{})}
	s.flights[a] = f
	s.pool.todo <- func(w *worker) {
		defer close(f.done)
		defer w.measure()()
		f.kept = make([]float32, len(w.kept))
		f.err = s.trainCopy(ctx, w, a.Client, task, f.kept, &f.update)
	}
}

// advance moves the virtual clock to the next event or wake-up of the machine, and handles
// all events at that time.
func (s *simulation) advance() error {
	at, ok := s.events.next()
	if wake, set := s.machine.Wake(s.now); set && (!ok || wake < at) {
		at, ok = wake, true
	}
	if !ok {
		return fmt.Errorf("round %d: no client is in flight, and no client is left to ask", s.machine.Round()+1)
	}
	s.now = max(s.now, at)
	for e, ok := s.events.take(s.now); ok; e, ok = s.events.take(s.now) {
		if e.Lost {
			s.machine.Lose(e.For)
		} else {
			s.machine.Return(e.For) // ignore the verdict, which only a real client needs
		}
	}
	return nil
}

// trainCopy trains a client. It copies the client's state to kept, changes only this copy,
// and writes the update to u.
func (s *simulation) trainCopy(ctx context.Context, w *worker, i int, task fed.Task, kept []float32, u *fed.Update) error {
	first, err := s.kept.Load(i, kept)
	if err != nil {
		return err
	}
	return s.trainWith(ctx, w, i, task, kept, first, u)
}

func (s *simulation) trainWith(ctx context.Context, w *worker, i int, task fed.Task, kept []float32, first bool, u *fed.Update) error {
	c := client.Client{ID: s.trainees[i].id, Data: s.trainees[i].data, Kept: kept[:w.client.Kept()], First: first}
	return w.client.Train(ctx, &c, task, u)
}

// trainInPlace trains a client whose update will be counted, so its stored state can change
// immediately. A state in memory changes in place.
func (s *simulation) trainInPlace(ctx context.Context, w *worker, i int, task fed.Task) error {
	kept, first, err := s.kept.Lend(i)
	if err != nil {
		return err
	}
	if kept == nil {
		if err := s.trainCopy(ctx, w, i, task, w.kept, &w.update); err != nil {
			return err
		}
		return s.kept.Put(i, w.kept)
	}
	defer s.kept.Return(i)
	return s.trainWith(ctx, w, i, task, kept, first, &w.update)
}

// result contains one client's contribution to a row of the rounds table.
type result struct {
	loss  float64
	steps int
}

// merge trains the clients that are counted, unless they already trained in the
// background, and updates the shared weights.
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
		var data fed.ServerData
		if s.own != nil {
			if err := s.own.Begin(ctx, s.server.Task(o.Round)); err != nil {
				return err
			}
			data = s.own
		}
		if err := s.server.Merge(o.Round, s.fold, data); err != nil {
			return err
		}
	}
	s.fold.Reset()
	return s.record(o, results)
}

// trainAll trains the clients of a round in parallel. Each worker sums the updates that it
// computes, so individual updates are retained only if the aggregator needs them.
func (s *simulation) trainAll(ctx context.Context, o round.Outcome, results []result) error {
	task := s.task(o.Round)
	if recipe.ChoosesNearest(s.Plan) {
		return choice{s}.train(ctx, o, task, results)
	}
	each := s.setup.Parts.Needs.EachUpdate
	err := s.pool.each(ctx, len(o.Counted), func(w *worker, i int) error {
		c := o.Counted[i].Client
		if err := s.trainInPlace(ctx, w, c, task); err != nil {
			return err
		}
		s.receive(task, &w.update)
		results[i] = result{w.update.TrainLoss, w.update.Steps}
		if err := s.count(w.fold, &w.update, task.Shared); err != nil {
			return err
		}
		if each {
			w.update = fed.Update{} // the fold retains the slices of the update
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

// collect adds the updates of background trainings that are counted in this round.
func (s *simulation) collect(counted []round.Assignment, results []result) error {
	for i, a := range counted {
		f := s.flights[a]
		<-f.done
		delete(s.flights, a)
		if f.err != nil {
			return f.err
		}
		s.receive(f.task, &f.update)
		results[i] = result{f.update.TrainLoss, f.update.Steps}
		if err := s.count(s.fold, &f.update, f.task.Shared); err != nil {
			return err
		}
		if err := s.keepTail(a.Client, f.kept); err != nil {
			return err
		}
		if err := s.kept.Put(a.Client, f.kept); err != nil {
			return err
		}
	}
	return nil
}

// record writes the round's row to the rounds table and reports progress.
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
	n := float64(len(results)) // without results the means are NaN, which is an empty field
	row.Staleness /= n
	row.Loss /= n
	s.steps += int64(row.Steps)
	s.summary.Steps += int64(row.Steps)
	if err := s.folder.Rounds.Append(row); err != nil {
		return err
	}
	s.reportProgress(row.Loss)
	return nil
}

// reportProgress calls Progress, if it is set.
func (s *simulation) reportProgress(loss float64) {
	if s.Progress != nil {
		s.Progress(Progress{Round: s.machine.Round(), Rounds: s.Plan.Rounds, Loss: loss, RelativeMAE: s.relative})
	}
}
