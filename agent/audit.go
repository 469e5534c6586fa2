package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/agent/audit"
	"loadstar/fed"
	"loadstar/fed/round"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// Audit audits a client of an agent that is not running. It calls no server.
func Audit(ctx context.Context, c Config, client string, progress func(done, of int)) (*audit.Report, error) {
	a, err := newAgent(c)
	if err != nil {
		return nil, err
	}
	defer a.endSession()
	report, err := a.audit(ctx, client, progress)
	return report, errors.Join(err, a.store.Close())
}

// serveAudits runs the audits that the agent's host requests.
func (a *agent) serveAudits(ctx context.Context) error {
	if a.Audits != nil {
		a.Audits.Serve(ctx, a.audit)
	}
	return nil
}

// auditTime limits an audit, because training waits for it.
const auditTime = 3 * time.Minute

// errNoUpdates means that there is nothing to audit.
var errNoUpdates = errors.New("no update of this client has been trained yet, or its weights are no longer on this machine")

// audit computes a client's newest updates again and attacks them. Training pauses in the meantime.
func (a *agent) audit(ctx context.Context, name string, progress func(done, of int)) (*audit.Report, error) {
	a.training.Lock()
	defer a.training.Unlock()
	x, report, err := a.subject(name)
	if err != nil {
		return nil, err
	}
	x.Time = auditTime
	x.Progress = func(done, of int) {
		progress(done, of)
		if a.Yield != nil {
			a.Yield(ctx)
		}
	}
	// Each guess changes the readings, so their features are not needed again.
	x.Setup.Problem.LimitCache(0)
	defer x.Setup.Problem.LimitCache(a.session.cache)
	report.Attacks, err = audit.Run(ctx, x)
	return report, err
}

// subject returns a client with its newest updates. The draws of examples are the same as in
// the updates that were sent, because they depend only on the secret and the task. The personal
// layers are the current ones, so older updates can differ a little from those that were sent.
func (a *agent) subject(name string) (x audit.Subject, report *audit.Report, err error) {
	report = &audit.Report{Client: name}
	var tasks [][]byte
	if report.Run, tasks, report.Pending, err = a.store.Tasks(name); err != nil {
		return x, nil, err
	}
	var s *session
	for _, b := range tasks {
		t := &loadstarv1.Task{}
		if err := proto.Unmarshal(b, t); err != nil {
			return x, nil, fmt.Errorf("a stored task cannot be read: %w", err)
		}
		if s == nil {
			if s, err = a.cachedSession(t); err != nil {
				return x, nil, err
			}
		}
		if task, ok := a.cachedTask(s, t); ok {
			x.Tasks = append(x.Tasks, task)
			report.Stored += 4 * int64(len(task.Shared)+len(task.Control))
		}
	}
	if len(x.Tasks) == 0 {
		return x, nil, errNoUpdates
	}
	report.Round = x.Tasks[0].Round + 1
	return x, report, a.auditClient(&x, s, report.Run, name)
}

// cachedTask returns a task if its weights are still on disk.
func (a *agent) cachedTask(s *session, t *loadstarv1.Task) (task fed.Task, ok bool) {
	floats := func(hash string) []float32 {
		data, err := a.blobs.cached(hash, 4*int64(s.shared()), true)
		if err != nil {
			return nil
		}
		return round.ReadFloats(nil, data)
	}
	task = taskOf(t)
	task.Shared = floats(t.GetWeights())
	if s.Job.Needs.Control {
		task.Control = floats(t.GetControl())
	}
	return task, task.Shared != nil && (task.Control != nil) == s.Job.Needs.Control
}

// cachedSession opens the session of a task whose plan is on disk.
func (a *agent) cachedSession(t *loadstarv1.Task) (*session, error) {
	text, err := a.blobs.cached(t.GetPlan(), maxPlan, false)
	if err != nil {
		return nil, errNoUpdates
	}
	return a.openSession(text, &job{Task: t})
}

// auditClient fills in the client of an audit.
func (a *agent) auditClient(x *audit.Subject, s *session, run, name string) error {
	const vectors = 16 // number of updates that an audit compares
	need := footprint(s.Plan, s.Problem, 2) - footprint(s.Plan, s.Problem, 1) + int64(vectors*4*s.shared())
	if need > s.spare {
		return fmt.Errorf("an audit needs %d MB in addition to training, but this agent has %d MB", need>>20, s.spare>>20)
	}
	at, ok := s.meters[name]
	if !ok {
		return fmt.Errorf("client %s has no readings", name)
	}
	x.Setup, x.Kernel, x.Meter = s.Setup, a.Kernel, s.data.Meter(at)
	scale, err := a.scaling(s, run, name, x.Meter)
	if err != nil {
		return err
	}
	// The attacker also knows the scaling, so a guess that changes a reading does not change
	// the scaling.
	frozen := scale.frozen
	if frozen == nil {
		own := s.Problem.Scaling(x.Meter, scale.ranges)
		frozen = &own
	}
	x.Examples = func(m series.Meter) series.Examples { return s.Problem.Frozen(m, *frozen) }
	x.Kept = slices.Clone(s.initial)
	kept, err := a.store.Load(run, name, x.Kept)
	x.First = kept.First
	return err
}
