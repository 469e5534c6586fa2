package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	loadstarv1 "loadstar/proto/loadstar/v1"
)

// Bounds of the time to the next contact, whatever the server says.
const (
	soonest = 5 * time.Millisecond
	latest  = 24 * time.Hour
	// unsaid is when the server does not say.
	unsaid = 30 * time.Second
	// standing is for how long a connection may stand open between contacts.
	standing = 30 * time.Second
)

// contact announces the clients and checks in, whenever the server wants it.
func (a *agent) contact(ctx context.Context) error {
	b := backoff{first: a.first, most: a.most}
	var told time.Time // when the clients were announced last
	missing := true    // some are not known to the server, or not as this agent's
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
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errStore), errors.Is(err, ErrRevoked):
			return err
		case err == nil:
			b.worked()
			wake(a.worklist.reached)
			if next > standing {
				a.Client.CloseIdleConnections()
			}
		default:
			next = b.failed()
			a.Log.Warn("no contact with the server", "error", err, "next", next.Round(time.Millisecond))
		}
		pause(ctx, next, nil)
	}
	return nil
}

// announce says which clients are here, and returns whether some are refused.
func (a *agent) announce(ctx context.Context) (refused bool, err error) {
	d := a.Dataset
	r, err := call(ctx, a, a.call, a.service.Announce, &loadstarv1.AnnounceRequest{
		Clients: a.names, Inputs: slices.Concat(d.Weather.Names, d.StaticNames), StepSeconds: d.Seconds(),
	})
	if err != nil {
		return true, err
	}
	a.Log.Info("announced", "clients", len(a.names))
	if not := r.GetRefused(); len(not) > 0 {
		a.Log.Warn("the server refuses clients: they are another agent's, or revoked", "clients", len(not), "first", not[0])
	}
	return len(r.GetRefused()) > 0, nil
}

// checkIn says what the agent is doing, takes up what it hears, and returns when the
// next one is due, and whether the clients are to be announced before it.
func (a *agent) checkIn(ctx context.Context) (next time.Duration, announce bool, err error) {
	training, sent := a.worklist.report()
	r, err := call(ctx, a, a.call, a.service.CheckIn, &loadstarv1.CheckInRequest{Training: training, Pushed: sent})
	if err != nil {
		return 0, false, err
	}
	if err := a.hear(r.GetVerdicts()); err != nil { // before tasks: clients may wait for them
		return 0, false, err
	}
	for _, t := range r.GetTasks() {
		a.worklist.add(t)
	}
	next = unsaid
	if ms := r.GetNextContactMs(); ms > 0 {
		next = time.Duration(min(ms, latest.Milliseconds())) * time.Millisecond
	}
	return max(min(jitter(next), a.worklist.lease()/2), soonest), r.GetAnnounce(), nil
}

// hear takes up verdicts: on disk first, then at the worklist.
func (a *agent) hear(verdicts []*loadstarv1.Verdict) error {
	f := a.worklist.hear(verdicts, a.Log)
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

// errStore marks errors of the agent's own disk.
var errStore = errors.New("the agent's state cannot be kept")

func storeError(err error) error { return fmt.Errorf("%w: %w", errStore, err) }
