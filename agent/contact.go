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

// Limits on the time to the next call, whatever interval the server sets.
const (
	soonest = 5 * time.Millisecond
	latest  = 24 * time.Hour
	// unsaid is the interval that applies if the server sets none.
	unsaid = 30 * time.Second
	// standing is the longest interval over which the agent keeps its connection open.
	// Before a longer wait it closes the connection.
	standing = 30 * time.Second
)

// contact announces the clients and exchanges tasks and results with the server. It calls when
// the agent has something to send, and otherwise at the server's interval. It makes one call at
// a time, so answers arrive in order.
func (a *agent) contact(ctx context.Context) error {
	retry := a.retry("contact")
	var told time.Time // time of the last announcement
	var away time.Time // time from which the server has not responded
	seek := a.seek
	missing := true // whether the server does not yet list all clients under this agent
	for ctx.Err() == nil {
		var next time.Duration
		var err error
		withheld := false // the server may have no room for the waiting result
		seeking := false
		if seeking, err = a.members.unenrolled(); err == nil && (missing && time.Since(told) > a.announceEvery || seeking && time.Since(told) > seek) {
			if missing, err = a.announce(ctx); err == nil {
				told, seek = time.Now(), min(2*seek, seekEvery)
			}
		}
		if err == nil {
			var unknown bool
			withheld = a.withhold
			next, unknown, err = a.exchange(ctx)
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
		case err == nil && withheld: // the server responds, so the result may also get through
			wake(a.worklist.reached)
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
		switch {
		case err != nil:
			pause(ctx, next, a.renewed) // an expired certificate may have been the reason
		case withheld:
			pause(ctx, next, nil)
		default:
			pause(ctx, next, a.worklist.post)
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
	return len(r.GetRefused()) > 0, a.members.hearStatements(r.GetStatements())
}

// exchange reports the open turns, sends declines and a result or a chunk of a result, and
// handles the response. Before it returns, it writes the response's decisions to disk. It
// returns the time to the next call and whether to announce the clients first.
func (a *agent) exchange(ctx context.Context) (next time.Duration, announce bool, err error) {
	select {
	case <-a.worklist.post: // this call has handled the signal
	default:
	}
	q := &loadstarv1.ExchangeRequest{Adapted: a.worklist.adaptedReports(), Session: a.serverSession, Have: a.blobs.have()}
	limit := a.call
	result, err := a.outgoing()
	if err != nil {
		return 0, false, err
	}
	var sending uint64
	if result != nil {
		q.Result, sending, limit = result.message, result.ID, a.tuning.push
	}
	var declines []*decline
	q.Training, q.Pushed, declines = a.worklist.report(sending)
	for _, x := range declines {
		a.Log.Warn("declined", "run", x.run, "round", x.round+1, "clients", len(x.clients), "reason", x.reason)
		q.Declines = append(q.Declines, &loadstarv1.Decline{Turns: &loadstarv1.Turns{Run: x.run, Round: x.round, Clients: x.clients}, Reason: x.reason, Code: x.code})
	}
	if result.whole() && a.worklist.idle(sending) {
		// The agent waits for the server, so the server may delay its answer until it has a task.
		q.WaitMs = a.wait.Milliseconds()
		limit += a.wait
	}
	a.releases.add(q)
	if q.Heads, err = a.heads.seen(); err != nil {
		return 0, false, err
	}
	if q.Enrolments, err = a.members.enrolments(); err != nil {
		return 0, false, err
	}
	r, err := call(ctx, a, limit, a.service.Exchange, q)
	if err != nil {
		return 0, false, a.notExchanged(q, result, declines, err)
	}
	a.withhold = false
	a.releases.done(len(q.Reports))
	a.worklist.adaptedDone(len(q.Adapted))
	a.worklist.declined(declines)
	a.releases.news.hear(r.GetReleases())
	if result != nil {
		if err := a.received(result, r.GetReceived()); err != nil {
			return 0, false, err
		}
	}
	if err := a.hear(r.GetVerdicts()); err != nil { // before tasks, because a task may wait for a verdict
		return 0, false, err
	}
	if err := a.members.hearReceipts(r.GetReceipts()); err != nil {
		return 0, false, err
	}
	if err := a.heads.noteForks(r.GetForked()); err != nil {
		return 0, false, err
	}
	if err := a.blobs.put(r.GetBlobs()); err != nil {
		return 0, false, err
	}
	// From now on the server may assume that the agent knows this response.
	a.serverSession = r.GetSession()
	for _, t := range r.GetTasks() {
		a.worklist.add(t)
	}
	for _, t := range r.GetAdapt() {
		a.worklist.addNew(t)
	}
	if !a.offer && a.worklist.hasMore() {
		return 0, r.GetAnnounce(), nil
	}
	next = unsaid
	if ms := r.GetNextContactMs(); ms > 0 {
		next = time.Duration(min(ms, latest.Milliseconds())) * time.Millisecond
	}
	return max(min(jitter(a.random("contact"), next), a.worklist.lease()/2), soonest), r.GetAnnounce(), nil
}

// notExchanged handles an error of a call. If the server has refused the request, repeating it
// would not help. Otherwise the next call omits the result, because the server may have no room
// for it, and the leases of other turns must be extended.
func (a *agent) notExchanged(q *loadstarv1.ExchangeRequest, result *outgoing, declines []*decline, err error) error {
	a.worklist.undeclined(declines)
	if result != nil {
		a.worklist.later(result.ID)
		a.withhold = !a.withhold
	} else {
		a.withhold = false
	}
	if !understood(err) {
		return err
	}
	a.withhold = false
	if len(q.Reports) > 0 {
		a.Log.Warn("the server refused a call with reports; they are dropped", "reports", len(q.Reports), "error", err)
		a.releases.done(len(q.Reports))
	}
	a.worklist.adaptedDone(len(q.Adapted))
	a.worklist.declined(declines)
	if result != nil {
		a.Log.Warn("the server refused a result", "run", result.Run, "round", result.Round+1, "error", err)
		a.worklist.wasSent(result.ID)
	}
	return err
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
