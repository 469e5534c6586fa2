package gateway

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// CheckIn extends the leases of the turns that an agent is training, and returns its new
// tasks and the verdicts on its results.
func (g *Gateway) CheckIn(ctx context.Context, r *v1.CheckInRequest) (*v1.CheckInResponse, error) {
	caller, err := g.caller(ctx)
	if err != nil {
		return nil, err
	}
	agent := caller.ID
	now := g.Ledger.Now()
	g.seen.note(agent, time.Now())
	training, err := g.turns(r.Training)
	if err != nil {
		return nil, err
	}
	pushed, err := g.turns(r.Pushed)
	if err != nil {
		return nil, err
	}
	leases, err := g.Ledger.Tasks(ctx, agent)
	if err != nil {
		return nil, g.unavailable(ctx, err)
	}
	var fresh []ledger.Task
	type roundKey struct {
		run   string
		round int64
	}
	keep := map[roundKey][]string{} // clients whose leases are extended
	var kept []roundKey             // in the order of the leases
	asked := make(map[ledger.Turn]bool, len(leases))
	for _, l := range leases {
		asked[l.Turn] = true
		switch left := l.Until.Sub(now); {
		case left <= 0: // the lease has expired, and the coordinator will withdraw it
		case !training[l.Turn] && !pushed[l.Turn]:
			fresh = append(fresh, l)
		case left < g.Lease/2:
			key := roundKey{l.Run, l.Round}
			if keep[key] == nil {
				kept = append(kept, key)
			}
			keep[key] = append(keep[key], l.Client)
		}
	}
	for _, key := range kept {
		if err := g.Ledger.Extend(ctx, agent, key.run, key.round, keep[key], now.Add(g.Lease)); err != nil {
			return nil, g.unavailable(ctx, err)
		}
	}
	if err := g.addReports(ctx, agent, r.Reports, now); err != nil {
		return nil, err
	}
	if err := g.addAdapted(ctx, agent, r.Adapted); err != nil {
		return nil, err
	}
	verdicts, err := g.verdicts(ctx, agent, r.Pushed, asked)
	if err != nil {
		return nil, g.unavailable(ctx, err)
	}
	over, err := g.obsolete(ctx, agent, r.Training, asked)
	if err != nil {
		return nil, g.unavailable(ctx, err)
	}
	verdicts = append(verdicts, over...)
	g.explainClosed(ctx, verdicts)
	forked, err := g.forked(ctx, agent, r.Heads)
	if err != nil {
		return nil, err
	}
	tasks, err := g.tasks(ctx, fresh[:min(len(fresh), turnsOfClient*g.Clients)], r.Heads, now)
	if err != nil {
		return nil, g.unavailable(ctx, err)
	}
	adapt, err := g.adapt(ctx, agent, r.Heads)
	if err != nil {
		return nil, g.unavailable(ctx, err)
	}
	open := func(v *v1.Verdict) bool {
		return v.Outcome == v1.Outcome_OUTCOME_ACCEPTED || v.Outcome == v1.Outcome_OUTCOME_UNKNOWN
	}
	busy := len(tasks) > 0 || slices.ContainsFunc(verdicts, open)
	return &v1.CheckInResponse{
		Tasks: tasks, Verdicts: verdicts, NextContactMs: g.contacts.note(agent, time.Now(), g.pace(busy, agent)).Milliseconds(), Announce: !caller.Hosts, Releases: g.releases(r), Adapt: adapt, Forked: forked,
	}, nil
}

// turns returns the set of turns that a request names. It refuses a request with more turns
// than an agent can have.
func (g *Gateway) turns(all []*v1.Turns) (map[ledger.Turn]bool, error) {
	if len(all) > maxRounds {
		// Limit the number of rounds, because each needs a query.
		return nil, g.invalid("clients", "a request may name turns of %d rounds, this one names %d", maxRounds, len(all))
	}
	set := map[ledger.Turn]bool{}
	named := 0
	for _, t := range all {
		if named += len(t.Clients); len(t.Clients) > g.Clients || named > turnsOfClient*g.Clients {
			return nil, g.invalid("clients", "a request may not name more turns than %d clients can have", g.Clients)
		}
		for _, c := range t.Clients {
			if !validName(t.Run) || !validName(c) {
				return nil, g.invalid("name", "a name is empty, longer than %d bytes, or has unprintable characters", nameBytes)
			}
			set[ledger.Turn{Run: t.Run, Round: t.Round, Client: c}] = true
		}
	}
	return set, nil
}

// pace returns the time until an agent's next check-in. A busy agent, which has new tasks
// or undecided results, checks in sooner. Its interval is shorter if there are fewer busy
// agents.
func (g *Gateway) pace(busy bool, agent string) time.Duration {
	// The interval must be well below the lease, so that an agent checks in before its
	// leases expire.
	most := min(g.Lease/4, g.Pace.MaxPoll)
	p := g.Pace.Of(g.agents.Load())
	if busy {
		p = min(g.Pace.Of(min(g.agents.Load(), g.asked.Load())), most)
	}
	p = g.gate.stretched(p, most)
	random := rand.Float64()
	if g.Random != nil {
		random = g.Random(agent)
	}
	return time.Duration(float64(p) * (0.8 + 0.4*random))
}

// verdicts returns the outcomes of pushed results. The results of turns that are still open
// did not arrive, or wait in a gateway; the agent sends them again.
func (g *Gateway) verdicts(ctx context.Context, agent string, pushed []*v1.Turns, asked map[ledger.Turn]bool) (all []*v1.Verdict, err error) {
	for _, t := range pushed {
		waiting, over := splitAsked(t, asked)
		by := map[v1.Outcome][]string{v1.Outcome_OUTCOME_UNKNOWN: waiting}
		if len(over) > 0 {
			where, err := g.Ledger.Outcomes(ctx, agent, t.Run, t.Round, over)
			if err != nil {
				return nil, err
			}
			for _, c := range over {
				o := outcomes[where[c].State]
				by[o] = append(by[o], c)
			}
		}
		for o, clients := range by {
			if len(clients) > 0 {
				all = append(all, &v1.Verdict{Run: t.Run, Round: t.Round, Clients: clients, Outcome: o})
			}
		}
	}
	slices.SortFunc(all, func(a, b *v1.Verdict) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Round, b.Round), cmp.Compare(a.Outcome, b.Outcome))
	})
	return all, nil
}

// maxEnded limits the runs whose end the gateway remembers.
const maxEnded = 256

// explainClosed adds to verdicts on closed rounds how their runs ended, for the agents'
// logs. A run that has ended stays so, so the gateway asks the ledger once. If the ledger
// does not answer, the verdicts have no reason.
func (g *Gateway) explainClosed(ctx context.Context, all []*v1.Verdict) {
	for _, v := range all {
		if v.Outcome != v1.Outcome_OUTCOME_CLOSED {
			continue
		}
		g.mu.Lock()
		how, known := g.ended[v.Run]
		g.mu.Unlock()
		if !known {
			var err error
			if how, err = g.Ledger.Ended(ctx, v.Run); err != nil || how == "" {
				continue
			}
			g.mu.Lock()
			if g.ended == nil || len(g.ended) >= maxEnded {
				g.ended = map[string]string{}
			}
			g.ended[v.Run] = how
			g.mu.Unlock()
		}
		v.Reason = how
	}
}

// outcomes maps the state of a turn that is no longer open to the outcome of its result.
var outcomes = map[ledger.TurnState]v1.Outcome{
	ledger.Closed: v1.Outcome_OUTCOME_CLOSED, ledger.Held: v1.Outcome_OUTCOME_ACCEPTED, ledger.Counted: v1.Outcome_OUTCOME_COUNTED,
}

// splitAsked returns the clients whose turns are open and those whose turns are not.
func splitAsked(t *v1.Turns, asked map[ledger.Turn]bool) (yes, no []string) {
	for _, c := range t.Clients {
		if asked[ledger.Turn{Run: t.Run, Round: t.Round, Client: c}] {
			yes = append(yes, c)
		} else {
			no = append(no, c)
		}
	}
	return yes, no
}

// obsolete returns verdicts on turns that an agent is training although they are closed or
// counted, so that the agent stops training them.
func (g *Gateway) obsolete(ctx context.Context, agent string, training []*v1.Turns, asked map[ledger.Turn]bool) (all []*v1.Verdict, err error) {
	for _, t := range training {
		_, over := splitAsked(t, asked)
		if len(over) == 0 {
			continue
		}
		where, err := g.Ledger.Outcomes(ctx, agent, t.Run, t.Round, over)
		if err != nil {
			return nil, err
		}
		for _, state := range []ledger.TurnState{ledger.Closed, ledger.Counted} {
			clients := slices.DeleteFunc(slices.Clone(over), func(c string) bool { return where[c].State != state })
			if len(clients) > 0 {
				all = append(all, &v1.Verdict{Run: t.Run, Round: t.Round, Clients: clients, Outcome: outcomes[state]})
			}
		}
	}
	return all, nil
}

// tasks returns one task per round for the given leases, with the blobs that the agent must
// fetch and the heads that it has not seen.
func (g *Gateway) tasks(ctx context.Context, leases []ledger.Task, seen []*v1.SeenHead, now time.Time) (all []*v1.Task, err error) {
	var last *v1.Task
	for _, l := range leases {
		if last == nil || last.Run != l.Run || last.Round != l.Round || last.Version != l.Version {
			if last, err = g.task(ctx, l, seen, now); err != nil {
				return nil, err
			}
			if last == nil {
				continue
			}
			all = append(all, last)
		}
		last.Clients = append(last.Clients, l.Client)
		last.LeaseMs = min(last.LeaseMs, l.Until.Sub(now).Milliseconds())
	}
	return all, nil
}

// task returns the task of a lease, without clients. It returns nil if the version was
// deleted, because the lease is then about to be withdrawn.
func (g *Gateway) task(ctx context.Context, l ledger.Task, seen []*v1.SeenHead, now time.Time) (*v1.Task, error) {
	t, err := g.Terms.Of(ctx, l.Run)
	if err != nil {
		return nil, err
	}
	v, err := g.Ledger.Version(ctx, l.Run, l.Version)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	limits, err := terms.DecodeLimits(v.Limits)
	if err != nil {
		return nil, err
	}
	heads, err := g.headsAfter(ctx, l.Run, l.Version, seen)
	if err != nil {
		return nil, err
	}
	// Agents of protocol 1 do not know limits. The server clips their updates, which it cannot
	// do in a sum.
	fold := t.Folds() && (limits == nil || protocol.OfCaller(ctx) >= 2)
	return &v1.Task{
		Run: l.Run, Round: l.Round, Version: l.Version, Plan: t.Blob, Weights: v.Weights, Control: v.Control, Limits: limits,
		LeaseMs: l.Until.Sub(now).Milliseconds(), Fold: fold, Fleet: int64(t.Fleet), Heads: heads,
	}, nil
}
