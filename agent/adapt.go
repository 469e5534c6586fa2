package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// newcomers holds the work for clients that a run has held out, until the server has the
// result. The work is kept only in memory, because the server asks again after a restart. The
// worklist's mutex protects it.
type newcomers struct {
	jobs []*job
	// known contains the clients that are queued, being scored or reported. Its keys have a
	// run but no round.
	known   map[turn]bool
	reports []*loadstarv1.Adapted
}

// maxNewcomers limits the clients in a report. The server has the same limit.
const maxNewcomers = 256

// addNew adds a task to adapt the weights of a finished run.
func (d *worklist) addNew(task *loadstarv1.Task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := &job{Task: task, adapt: true}
	for _, c := range task.GetClients() {
		t := turn{run: task.GetRun(), client: c}
		if d.new.known[t] || !d.hosted[c] || len(d.new.known) >= d.most || len(j.clients) == maxNewcomers {
			continue
		}
		if d.new.known == nil {
			d.new.known = map[turn]bool{}
		}
		d.new.known[t] = true
		j.clients = append(j.clients, c)
	}
	if len(j.clients) > 0 {
		d.new.jobs = append(d.new.jobs, j)
		wake(d.work)
	}
}

// takeNew returns the next job for held-out clients, or nil. The caller must hold the lock.
func (d *worklist) takeNew() *job {
	if len(d.new.jobs) == 0 {
		return nil
	}
	j := d.new.jobs[0]
	d.new.jobs = slices.Delete(d.new.jobs, 0, 1)
	return j
}

// adapted queues the result of a job for the next check-in.
func (d *worklist) adapted(j *job, e *loadstarv1.Evaluation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.new.reports = append(d.new.reports, &loadstarv1.Adapted{Run: j.GetRun(), Clients: j.clients, Evaluation: e})
}

// adaptedReports returns the results to report, oldest first.
func (d *worklist) adaptedReports() []*loadstarv1.Adapted {
	const most = 16
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.new.reports[:min(len(d.new.reports), most)])
}

// adaptedDone removes the n oldest results, which the server has stored or refused. The clients
// stay known, because the server's list of open tasks may be a second old. If too many are
// known, all are forgotten.
func (d *worklist) adaptedDone(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.new.reports = slices.Delete(d.new.reports, 0, n)
	if len(d.new.reports)+len(d.new.jobs) == 0 && len(d.new.known) >= d.most/2 {
		clear(d.new.known)
	}
}

// adaptAll scores a finished run's weights on the clients that the run has held out. Like the
// simulator, it first adapts the weights to each client's readings. It stores nothing.
func (a *agent) adaptAll(ctx context.Context, j *job) error {
	a.Log.Info("adapting", "run", j.GetRun(), "version", j.GetVersion(), "clients", len(j.clients))
	sum := &loadstarv1.Evaluation{}
	err := a.adaptWith(ctx, j, sum)
	var no *unfit
	switch {
	case ctx.Err() != nil:
		return nil // the server asks again after a restart
	case errors.As(err, &no):
		a.Log.Warn("cannot adapt the weights of a run", "run", j.GetRun(), "error", err)
	case err != nil:
		return err
	}
	if sum.Clients == 0 {
		sum = nil
	}
	a.worklist.adapted(j, sum)
	return nil
}

func (a *agent) adaptWith(ctx context.Context, j *job, sum *loadstarv1.Evaluation) error {
	if !a.Policy.ShareLosses {
		return unfitOf(codePolicy, "errors may not leave this agent (policy.share_losses)")
	}
	if err := a.allowRound(j); err != nil {
		return err
	}
	text, err := a.fetch(ctx, j.GetPlan(), maxPlan, false)
	if err != nil {
		return err
	}
	s, err := a.openSession(text, j)
	if err != nil {
		return err
	}
	if err := a.allowPlan(j); err != nil {
		return err
	}
	if recipe.Private(s.Plan) {
		return unfitOf(codePolicy, "the run is private, and test errors of held-out clients would not be")
	}
	x, err := s.newAdapter(a)
	if err != nil {
		return err
	}
	task := fed.Task{Run: j.GetRun(), Round: s.Plan.Rounds, Version: int(j.GetVersion())}
	if task.Shared, err = a.floats(ctx, j.GetWeights(), s.shared()); err != nil {
		return err
	}
	if err := a.accept(s, j, task.Shared, false); err != nil {
		return err
	}
	for _, name := range j.clients {
		if a.Yield != nil {
			a.Yield(ctx)
		}
		relative, err := x.score(ctx, j.GetRun(), name, task)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.Log.Warn("cannot score a held-out client", "run", j.GetRun(), "client", name, "error", err)
		case !math.IsNaN(relative) && !math.IsInf(relative, 0):
			sum.Clients++
			sum.RelativeMae += reported(relative)
		}
	}
	return nil
}

// adapter adapts the weights of a run to clients that did not train, and scores them.
type adapter struct {
	agent   *agent
	session *session
	tuner   *client.Tuner // nil if the plan does not fine-tune
	scorer  *forecast.Scorer
	worker  *client.Worker // needed for the length of a client's state
	weights []float32
}

// newAdapter returns an adapter, or an [unfit] error if it needs too much memory.
func (s *session) newAdapter(a *agent) (*adapter, error) {
	need := footprint(s.Plan, s.Problem, 1) + scoringBytes(s.Plan, s.Problem)
	if need > s.spare {
		return nil, unfitf("adapting takes %d MB more than this agent may use", (need-s.spare)>>20+1)
	}
	q := s.Problem
	x := &adapter{
		agent: a, session: s, tuner: s.NewTuner(a.Kernel), worker: s.workers[0].Worker,
		scorer: forecast.NewScorer(q.Model, a.Kernel, q.Loss), weights: make([]float32, q.Model.Net().Weights()),
	}
	x.scorer.Reference, x.scorer.Stride = forecast.Reference(s.Plan.Evaluate.Reference), s.Plan.Evaluate.Stride.Steps()
	x.scorer.Correct = s.Plan.Evaluate.Correct
	return x, nil
}

// score returns a client's relative MAE on its test split.
func (x *adapter) score(ctx context.Context, run, name string, task fed.Task) (float64, error) {
	s := x.session
	at, ok := s.meters[name]
	if !ok {
		return 0, fmt.Errorf("it has no readings")
	}
	m := s.data.Meter(at)
	scale, err := x.agent.scaling(s, run, name, m)
	if err != nil {
		return 0, err
	}
	data := scale.examples(s.Problem, m)
	if data.Len(series.Train) == 0 {
		return 0, fmt.Errorf("it has no complete training example")
	}
	x.scorer.Leave = s.leaveOut(&task, fed.ClientID(name), data, series.Test)
	if n := x.scorer.Scored(data, series.Test, 0); n < s.policy.LeastExamples {
		return 0, fmt.Errorf("the error would cover only %d windows, but the minimum is %d (policy.least_examples)", n, s.policy.LeastExamples)
	}
	p := s.Problem.Partition
	kept := s.InitialKept(x.worker)
	p.Join(x.weights, s.Problem.SharedWeights(task.Shared), kept[:p.PersonalLen()])
	weights := x.weights
	if x.tuner != nil {
		c := client.Client{ID: fed.ClientID(name), Data: []series.Examples{data}, Kept: kept, First: true}
		weights, err = x.tuner.Tune(ctx, &c, task, nil, func(w []float32) (float64, error) {
			score, _, err := x.scorer.Score(w, m, data, series.Validation, 0, nil)
			return score.Overall.MAE(), err
		})
		if err != nil {
			return 0, err
		}
	}
	score, _, err := x.scorer.Serve(weights, m, data, nil)
	return score.Overall.RelativeMAE(), err
}
