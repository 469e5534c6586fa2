package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// Limits on the time to the next check-in, whatever interval the server sets.
const (
	soonest = 5 * time.Millisecond
	latest  = 24 * time.Hour
	// unsaid is the interval to use if the server sets none.
	unsaid = 30 * time.Second
	// standing is the longest interval over which the agent keeps its connection open.
	// Before a longer wait it closes the connection.
	standing = 30 * time.Second
)

// contact announces the clients and checks in at the interval that the server sets.
func (a *agent) contact(ctx context.Context) error {
	retry := a.retry("contact")
	var told time.Time // time of the last announcement
	var away time.Time // time since when the server does not answer
	missing := true    // whether the server does not yet list all clients under this agent
	for ctx.Err() == nil {
		var next time.Duration
		var err error
		if missing && time.Since(told) > a.announceEvery {
			if missing, err = a.announce(ctx); err == nil {
				told = time.Now()
			}
		}
		if err == nil {
			var unknown bool
			next, unknown, err = a.checkIn(ctx)
			missing = missing || unknown
		}
		if ctx.Err() == nil {
			away = a.reached(away, err)
			wake(a.contacted)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errStore), errors.Is(err, ErrRevoked):
			return err
		case err == nil:
			retry.Reset()
			wake(a.worklist.reached)
			if next > standing {
				a.Client.CloseIdleConnections()
			}
		default:
			next = retry.Next()
			a.Log.Warn("cannot reach the server", "error", err, "next", next.Round(time.Millisecond))
		}
		if err != nil {
			pause(ctx, next, a.renewed) // an expired certificate was perhaps the reason
		} else {
			pause(ctx, next, nil)
		}
	}
	return nil
}

// announce sends the list of clients and reports whether the server refused any.
func (a *agent) announce(ctx context.Context) (refused bool, err error) {
	r, err := call(ctx, a, a.call, a.service.Announce, &loadstarv1.AnnounceRequest{
		Clients: a.names, Inputs: a.inputs, StepSeconds: a.step, Version: a.Version, Now: time.Now().UnixMilli(), Generated: a.generated,
	})
	if err != nil {
		return true, err
	}
	a.Log.Info("announced clients", "clients", len(a.names))
	reason := cmp.Or(r.GetReason(), "revoked, or another agent has them")
	if a.Announced != nil {
		a.Announced(r.GetRefused(), reason)
	}
	if not := r.GetRefused(); len(not) > 0 {
		a.Log.Warn("the server refused clients", "clients", len(not), "first", not[0], "reason", reason)
	}
	return len(r.GetRefused()) > 0, nil
}

// checkIn reports the open turns and handles the verdicts and tasks of the response. It
// returns the time to the next check-in and whether to announce the clients first.
func (a *agent) checkIn(ctx context.Context) (next time.Duration, announce bool, err error) {
	training, sent := a.worklist.report()
	q := &loadstarv1.CheckInRequest{Training: training, Pushed: sent, Adapted: a.worklist.adaptedReports()}
	a.addReleases(q)
	if q.Heads, err = a.seenHeads(); err != nil {
		return 0, false, err
	}
	r, err := call(ctx, a, a.call, a.service.CheckIn, q)
	if err != nil {
		if understood(err) && len(q.Reports) > 0 {
			a.Log.Warn("the server refused a check-in with reports; they are dropped", "reports", len(q.Reports), "error", err)
			a.reportsDone(len(q.Reports))
		}
		if understood(err) {
			a.worklist.adaptedDone(len(q.Adapted))
		}
		return 0, false, err
	}
	a.reportsDone(len(q.Reports))
	a.worklist.adaptedDone(len(q.Adapted))
	a.news.hear(r.GetReleases())
	if err := a.hear(r.GetVerdicts()); err != nil { // before tasks, because a task may wait for a verdict
		return 0, false, err
	}
	if err := a.noteForks(r.GetForked()); err != nil {
		return 0, false, err
	}
	for _, t := range r.GetTasks() {
		a.worklist.add(t)
	}
	for _, t := range r.GetAdapt() {
		a.worklist.addNew(t)
	}
	next = unsaid
	if ms := r.GetNextContactMs(); ms > 0 {
		next = time.Duration(min(ms, latest.Milliseconds())) * time.Millisecond
	}
	return max(min(jitter(a.random("contact"), next), a.worklist.lease()/2), soonest), r.GetAnnounce(), nil
}

// hear applies verdicts, first on disk and then to the worklist.
func (a *agent) hear(verdicts []*loadstarv1.Verdict) error {
	f := a.worklist.hear(verdicts, a.Log)
	a.pulse.decided(f.updates, f.late)
	for _, v := range verdicts {
		if why := v.GetReason(); why != "" && v.GetOutcome() == loadstarv1.Outcome_OUTCOME_CLOSED && a.pulse.over(v.GetRun()) {
			a.Log.Info("a run has ended", "run", v.GetRun(), "reason", why)
		}
	}
	if len(f.counted)+len(f.dropped) == 0 {
		return nil
	}
	if err := a.store.Decide(f.counted, f.dropped); err != nil {
		return storeError(err)
	}
	a.worklist.done(slices.Concat(f.counted, f.dropped))
	for _, x := range f.rejected {
		a.worklist.refuse(x)
	}
	return nil
}

// errStore marks errors of the agent's own disk, which end the agent.
var errStore = errors.New("cannot read or store the agent's state")

func storeError(err error) error { return fmt.Errorf("%w: %w", errStore, err) }

// inputsOf returns the names of a dataset's inputs. A dataset with a country has holidays.
func inputsOf(d *series.Dataset) []string {
	names := slices.Concat(d.Weather.Names, d.StaticNames)
	if d.Country != "" && !slices.Contains(names, "holiday") {
		names = append(names, "holiday")
	}
	return names
}
