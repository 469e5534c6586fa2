package agent

import (
	"context"
	"log/slog"
	"slices"

	loadstarv1 "loadstar/proto/loadstar/v1"
)

// fates groups the results that verdicts decide.
type fates struct {
	counted, dropped []uint64
	updates, late    int // clients whose results were counted or were too late
	// rejected lists declines for dropped results that the server found invalid. Training again
	// would give the same results, so the agent declines the turns.
	rejected []*decline
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

// hear applies verdicts to the worklist and returns the results that they decide. The server
// counts a result as a whole, so a verdict on one of its clients applies to all of them.
func (d *worklist) hear(verdicts []*loadstarv1.Verdict, log *slog.Logger) (f fates) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ended := map[uint64]bool{}
	for _, v := range verdicts {
		for _, c := range v.GetClients() {
			t := turn{v.GetRun(), v.GetRound(), c}
			p, ok := d.turns[t]
			if !ok || ended[p.result] {
				continue
			}
			if p.stage != ready && p.stage != sent {
				if v.GetOutcome() == loadstarv1.Outcome_OUTCOME_CLOSED {
					d.close(t, p)
				}
				continue
			}
			r := d.results[p.result]
			keys := []any{"run", t.run, "round", t.round + 1, "clients", len(r.Clients)}
			switch v.GetOutcome() {
			case loadstarv1.Outcome_OUTCOME_COUNTED:
				if log.Enabled(context.Background(), slog.LevelDebug) {
					keys = append(keys, "names", r.Clients)
				}
				log.Debug("result counted", keys...)
				f.updates += len(r.Clients)
				f.counted, ended[r.ID] = append(f.counted, r.ID), true
			case loadstarv1.Outcome_OUTCOME_CLOSED:
				log.Debug("result arrived after its round closed", keys...)
				f.late += len(r.Clients)
				f.dropped, ended[r.ID] = append(f.dropped, r.ID), true
			case loadstarv1.Outcome_OUTCOME_REJECTED:
				log.Warn("result rejected", append(keys, "reason", v.GetReason())...)
				f.dropped, ended[r.ID] = append(f.dropped, r.ID), true
				f.rejected = append(f.rejected, &decline{run: r.Run, round: r.Round, clients: r.Clients, reason: "the server rejected its result"})
			case loadstarv1.Outcome_OUTCOME_UNKNOWN, loadstarv1.Outcome_OUTCOME_PART:
				if p.stage == sent {
					d.resend(p.result)
				}
			}
		}
	}
	return f
}

// refuse queues a decline for clients whose result the server rejected.
func (d *worklist) refuse(x *decline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range x.clients {
		d.at(turn{x.run, x.round, c}).stage = declining
	}
	d.declines = append(d.declines, x)
	wake(d.post)
}

// close drops a turn whose round has closed. It cancels the active job if none of the
// job's clients must still be trained.
func (d *worklist) close(t turn, p *place) {
	switch p.stage {
	case waiting:
		d.unqueue(t)
	case training:
		delete(d.turns, t)
		a := d.active
		if a != nil && a.cancel != nil && !slices.ContainsFunc(a.clients, func(c string) bool {
			return d.is(turn{a.GetRun(), a.GetRound(), c}, training)
		}) {
			a.cancel(errClosed)
		}
	}
}

// resend queues a result for sending again.
func (d *worklist) resend(id uint64) {
	d.place(d.results[id], ready)
	if !slices.Contains(d.queue, id) {
		d.queue = append(d.queue, id)
	}
	wake(d.post)
}

// done removes decided results and the turns of their clients.
func (d *worklist) done(ids []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		for _, c := range d.results[id].Clients {
			delete(d.turns, turn{d.results[id].Run, d.results[id].Round, c})
		}
		delete(d.results, id)
		delete(d.damaged, id)
	}
	d.queue = slices.DeleteFunc(d.queue, func(id uint64) bool { _, ok := d.results[id]; return !ok })
	wake(d.work) // the clients may have turns that waited for the decision
}
