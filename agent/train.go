package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// errClosed is the cancellation cause of a job whose round has closed.
var errClosed = errors.New("the round is closed")

// train runs the worklist's jobs one after the other.
func (a *agent) train(ctx context.Context) error {
	for {
		j := a.worklist.next(ctx)
		if j == nil {
			return nil
		}
		if err := a.work(ctx, j); err != nil {
			return err
		}
	}
}

// work does one job. It uses the session, which audits also use.
func (a *agent) work(ctx context.Context, j *job) error {
	a.training.Lock()
	defer a.training.Unlock()
	if j.adapt {
		return a.adaptAll(ctx, j)
	}
	defer a.worklist.end(j)
	return a.do(ctx, j)
}

// do trains the clients of a job, and declines turns that it cannot train. It returns an error
// only if the agent's disk fails.
func (a *agent) do(ctx context.Context, j *job) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.worklist.begun(j, cancel)
	a.pulse.training(j.GetRun(), j.GetRound(), len(j.clients))
	a.Log.Debug("training", "run", j.GetRun(), "round", j.GetRound()+1, "version", j.GetVersion(), "clients", len(j.clients))
	s, task, err := a.prepare(ctx, j)
	var no *unfit
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &no):
		a.worklist.decline(j, no.code, no.reason, j.clients...)
		return nil
	case err != nil:
		return err
	}
	masks, err := a.members.masking(j, s)
	if err == nil && masks != nil {
		err = a.spent(j, masks)
	}
	if errors.As(err, &no) {
		a.worklist.decline(j, no.code, no.reason, j.clients...)
		return nil
	} else if err != nil {
		return err
	}
	what, err := whatOf(j.Task)
	if err != nil {
		return err
	}
	if err := a.store.Remember(j.GetRun(), j.GetRound(), what); err != nil {
		return storeError(err)
	}
	return a.turns(ctx, j, s, task, masks)
}

// prepare fetches the plan and weights of a job.
func (a *agent) prepare(ctx context.Context, j *job) (*session, fed.Task, error) {
	task := taskOf(j.Task)
	if err := state.CheckName(j.GetRun()); err != nil {
		return nil, task, unfitf("the run's name is invalid: %v", err)
	}
	if r, v := j.GetRound(), j.GetVersion(); r < 0 || r > math.MaxInt32 || v < 0 || v > math.MaxInt32 {
		return nil, task, unfitf("round %d or version %d is out of range", r, v)
	}
	if err := a.allowRound(j); err != nil {
		return nil, task, err
	}
	dropped, err := a.store.Begin(j.GetRun())
	switch {
	case errors.Is(err, state.ErrForgotten):
		return nil, task, unfitf("this agent hosts too many runs: %v", err)
	case err != nil:
		return nil, task, storeError(err)
	}
	a.worklist.done(dropped)
	text, err := a.fetch(ctx, j.GetPlan(), maxPlan, false)
	if err != nil {
		return nil, task, err
	}
	s, err := a.openSession(text, j)
	if err != nil {
		return nil, task, err
	}
	if err := a.allowPlan(j); err != nil {
		return nil, task, err
	}
	s.fold.Reset()
	if (j.GetControl() != "") != s.Job.Needs.Control {
		return nil, task, unfitf("the task and the plan disagree on whether there are control variates")
	}
	if task.Shared, err = a.floats(ctx, j.GetWeights(), s.shared()); err == nil && s.Job.Needs.Control {
		task.Control, err = a.floats(ctx, j.GetControl(), s.shared())
	}
	if err != nil {
		return nil, task, err
	}
	return s, task, a.accept(s, j, task.Shared, true)
}

// taskOf returns a task without its weights.
func taskOf(t *loadstarv1.Task) fed.Task {
	l := t.GetLimits()
	return fed.Task{
		Run: t.GetRun(), Round: int(t.GetRound()), Version: int(t.GetVersion()),
		Limits: fed.Limits{Norm: l.GetNorm(), Control: l.GetControl(), Examples: l.GetExamples(), Loss: l.GetLoss(), Coordinate: l.GetCoordinate()},
	}
}

// allowRound counts the round of a job, and returns an [unfit] error if the policy allows no
// more rounds today.
func (a *agent) allowRound(j *job) error {
	most := a.Policy.RoundsPerDay
	if most == 0 {
		return nil
	}
	task, err := taskID(j.Task)
	if err != nil {
		return err
	}
	n, err := a.store.CountRound(task, most, time.Now())
	switch {
	case err != nil:
		return storeError(err)
	case n > most:
		return unfitOf(codePolicy, "this agent has trained %d rounds today, the most is %d (policy.rounds_per_day)", most, most)
	}
	return nil
}

// allowPlan counts the plan of a job, and returns an [unfit] error if the policy allows no
// further plan this week. Plans that the policy declines are not counted.
func (a *agent) allowPlan(j *job) error {
	most := a.Policy.PlansPerWeek
	if most == 0 {
		return nil
	}
	n, err := a.store.CountPlan(j.GetPlan(), most, time.Now())
	switch {
	case err != nil:
		return storeError(err)
	case n > most:
		return unfitOf(codePolicy, "this agent has trained %d plans in seven days, the most is %d (policy.plans_per_week)", most, most)
	}
	return nil
}

// taskID identifies the training of a task, independently of its clients.
func taskID(t *loadstarv1.Task) (string, error) {
	b, err := whatOf(t)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16]), nil
}

// whatOf encodes the training inputs of a task.
func whatOf(t *loadstarv1.Task) ([]byte, error) {
	what := proto.CloneOf(t)
	what.Clients, what.LeaseMs, what.Fold, what.Heads = nil, 0, false, nil
	return proto.MarshalOptions{Deterministic: true}.Marshal(what)
}

// openSession returns the session of a job. If the readings grow, each run has its own
// session, which uses the readings at its start.
func (a *agent) openSession(text []byte, j *job) (*session, error) {
	run := ""
	if a.Source != nil {
		run = j.GetRun()
	}
	if s := a.session; s != nil && s.run == run && s.plan == j.GetPlan() && int64(s.Fleet) == j.GetFleet() {
		return s, nil
	}
	a.endSession() // first free the old session, because there is memory for only one
	d, release, err := a.snapshot()
	if err != nil {
		a.Log.Error("cannot read the readings", "error", err)
		return nil, unfitf("the readings cannot be read")
	}
	s, err := newSession(text, j.GetFleet(), d, a.Kernel, min(a.Workers, len(a.names)), a.Memory, a.Policy, a.secret)
	if err != nil {
		release()
		return nil, err
	}
	s.run, s.plan, s.release = run, j.GetPlan(), release
	a.session = s
	return s, nil
}

// endSession frees the session and its readings.
func (a *agent) endSession() {
	if a.session != nil {
		a.session.release()
		a.session = nil
	}
}

// fetch gets a blob, and retries as long as the server is unreachable. If the content does not
// match the hash, it retries only a few times, because the server may have a wrong blob.
func (a *agent) fetch(ctx context.Context, hash string, size int64, exact bool) ([]byte, error) {
	const tries = 3
	retry := a.retry("train")
	for try := 1; ; {
		data, err := a.blobs.get(ctx, hash, size, exact)
		switch {
		case err == nil || errors.Is(err, errStore) || ctx.Err() != nil:
			return data, err
		case errors.Is(err, errBlob):
			if try == tries {
				return nil, unfitf("%v", err)
			}
			try++
		}
		wait := retry.Next()
		a.Log.Warn("cannot fetch a blob", "error", err, "next", wait)
		pause(ctx, wait, a.worklist.reached)
	}
}

func (a *agent) floats(ctx context.Context, hash string, n int) ([]float32, error) {
	data, err := a.fetch(ctx, hash, 4*int64(n), true)
	if err != nil {
		return nil, err
	}
	return round.ReadFloats(nil, data), nil
}

// turns trains the clients of a job in parallel.
func (a *agent) turns(ctx context.Context, j *job, s *session, task fed.Task, masks *masking) error {
	g := &group{agent: a, job: j, session: s, masking: masks, sum: masks != nil || j.GetFold() && len(j.clients) >= foldLeast && !s.Job.Needs.EachUpdate && !s.Job.Needs.Loss}
	var (
		next   atomic.Int64
		failed atomic.Pointer[error]
		wg     sync.WaitGroup
	)
	for _, w := range s.workers {
		wg.Go(func() {
			for ctx.Err() == nil && failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(j.clients) {
					return
				}
				if a.Yield != nil {
					a.Yield(ctx)
				}
				if err := a.turn(ctx, j, s, w, task, j.clients[i], g); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	switch err := failed.Load(); {
	case err != nil:
		return *err
	case ctx.Err() != nil:
		g.giveUp()
		return nil
	}
	return g.finish()
}

// turn trains one client and adds its update to the group.
func (a *agent) turn(ctx context.Context, j *job, s *session, w *worker, task fed.Task, name string, g *group) error {
	if !a.worklist.wanted(j, name) {
		return nil
	}
	keys := []any{"run", j.GetRun(), "round", j.GetRound() + 1, "client", name}
	at, ok := s.meters[name]
	if !ok {
		a.worklist.decline(j, codeData, "it has no readings", name)
		return nil
	}
	m := s.data.Meter(at)
	scale, err := a.scaling(s, j.GetRun(), name, m)
	if err != nil {
		a.Log.Error("cannot read a client's scaling", append(keys, "error", err)...)
		a.worklist.decline(j, "", "its scaling cannot be read", name)
		return nil
	}
	c := client.Client{ID: fed.ClientID(name), Data: []series.Examples{scale.examples(s.Problem, m)}, Kept: w.kept}
	if c.Data[0].Len(series.Train) == 0 {
		a.worklist.decline(j, codeData, "it has no complete training example", name)
		return nil
	}
	if reason := s.policy.CheckClient(s.Plan, c.Data[0].Len(series.Train)); reason != "" {
		if g.masking != nil {
			reason = "it has fewer training examples than this agent's policy demands" // their number is private
		}
		a.worklist.decline(j, codePolicy, reason, name)
		return nil
	}
	kept, err := a.store.Load(j.GetRun(), name, w.kept)
	switch {
	case err != nil:
		a.Log.Error("cannot read a client's personal layers", append(keys, "error", err)...)
		a.worklist.decline(j, "", "its personal layers cannot be read", name)
		return nil
	case kept.First:
		copy(w.kept, s.initial)
		c.First = true
	case j.GetRound() <= kept.Round:
		a.worklist.decline(j, "", fmt.Sprintf("it was already counted in round %d", kept.Round+1), name)
		return nil
	}
	// Version 0 is determined by the seed. Window models begin with forecasts near the lowest
	// load, and updates of their first layers do not reveal single examples.
	if s.policy.MostStep > 0 && j.GetVersion() > 0 && recipe.Rows(s.Plan) {
		if saturated, err := w.Saturated(&c, task); err != nil || saturated {
			a.worklist.decline(j, codePolicy, "nearly all forecasts of the weights are wrong in the same direction (policy.most_step)", name)
			return nil
		}
	}
	w.evaluation = s.evaluate(task, m, c.Data[0], w.kept, c.First)
	err = w.Train(ctx, &c, task, &w.update)
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, fed.ErrDiverged):
		a.Log.Warn("training diverged", append(keys, "error", err)...)
		a.worklist.decline(j, codeDiverged, "training diverged", name)
		return nil
	case err != nil:
		a.Log.Error("cannot train a client", append(keys, "error", err)...)
		a.worklist.decline(j, "", "training failed", name)
		return nil
	}
	w.scaling = scale.encode(s.Problem, m)
	return g.take(w, task.Shared)
}
