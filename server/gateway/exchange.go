package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

const (
	// holdFor is the maximum time for which a call is held. If the interval between calls is
	// longer than standing, agents close their connections, so their calls are not held.
	holdFor, standing = 25 * time.Second, 30 * time.Second
	// keeperPause is the shortest time after which an agent asks again whether a keeper can check its
	// result.
	keeperPause = 5 * time.Second
	// maxInline limits the size of a blob in a response. maxBlobs limits the total size.
	// maxHave limits the blobs that an agent names.
	maxInline, maxBlobs = 1 << 20, 2 << 20
	maxHave             = 32
)

// named contains the turns that a request names.
type named struct {
	training, pushed map[ledger.Turn]bool
	others           map[ledger.Turn]bool // the turns of its result and its declines
}

// Exchange is the only call that an agent needs in order to train in runs. It declines turns,
// stores reports, counts a result, extends the leases of the turns that the agent is training,
// and returns verdicts and new tasks. If there is nothing new, the call is held.
func (g *Gateway) Exchange(ctx context.Context, r *v1.ExchangeRequest) (*v1.ExchangeResponse, error) {
	caller, err := g.callers.known(ctx)
	if err == nil && !caller.Hosts { // the agent may have announced its clients since its lookup
		caller, err = g.callers.caller(ctx)
	}
	if err != nil {
		return nil, err
	}
	agent := caller.ID
	g.seen.note(agent, time.Now())
	names, err := g.names(r)
	if err != nil {
		return nil, err
	}
	if err := g.decline(ctx, agent, r.Declines); err != nil {
		return nil, err
	}
	if err := g.reports.add(ctx, agent, r.Reports, g.Ledger.Now()); err != nil {
		return nil, err
	}
	if err := g.newClients.add(ctx, agent, r.Adapted); err != nil {
		return nil, err
	}
	receipts, err := g.enrol(ctx, agent, r.Enrolments)
	if err != nil {
		return nil, err
	}
	var received *v1.Received
	if r.Result != nil {
		if received, err = g.results.take(ctx, agent, r.Result); err != nil {
			return nil, err
		}
		if o := received.Outcome; o == v1.Outcome_OUTCOME_UNKNOWN || o == v1.Outcome_OUTCOME_PART {
			names.keep(r)
		}
		r.Result = nil // the memory of the result is no longer needed
	}
	answer, err := g.wait(ctx, caller, r, names, received)
	if err != nil {
		return nil, err
	}
	answer.Receipts = receipts
	g.history.explainClosed(ctx, answer.Verdicts)
	g.addBlobs(ctx, r, answer)
	return answer, nil
}

// names returns the turns that a request names, after checking it.
func (g *Gateway) names(r *v1.ExchangeRequest) (n named, err error) {
	if n.training, err = g.turns(r.Training); err != nil {
		return n, err
	}
	if n.pushed, err = g.turns(r.Pushed); err != nil {
		return n, err
	}
	if len(r.Have) > maxHave {
		return n, g.refuse.invalid("blobs", "a request may name %d blobs, this one names %d", maxHave, len(r.Have))
	}
	n.others = map[ledger.Turn]bool{}
	for _, s := range r.GetResult().GetShares() {
		n.others[ledger.Turn{Run: r.Result.Run, Round: r.Result.Round, Client: s.Client}] = true
	}
	for _, d := range r.Declines {
		for _, c := range d.GetTurns().GetClients() {
			n.others[ledger.Turn{Run: d.Turns.Run, Round: d.Turns.Round, Client: c}] = true
		}
	}
	for t := range n.others {
		delete(n.training, t)
	}
	return n, nil
}

// keep moves the turns of a result to those in training, because the agent keeps the result or has more
// of it to send, and its leases must be extended.
func (n *named) keep(r *v1.ExchangeRequest) {
	turns := turnsOf(r.Result)
	r.Training = append(r.Training, turns)
	if n.training == nil { // the agent names no other turn
		n.training = map[ledger.Turn]bool{}
	}
	for _, c := range turns.Clients {
		t := ledger.Turn{Run: turns.Run, Round: turns.Round, Client: c}
		n.training[t] = true
		delete(n.others, t)
	}
}

// leases returns the open leases of an agent. It reads them from memory if they are certain
// to give the same tasks as the ledger, or older tasks that the agent does not know yet.
// Verdicts need the ledger.
func (g *Gateway) leases(ctx context.Context, agent string, r *v1.ExchangeRequest, n named, now time.Time) (all []ledger.Task, err error) {
	all, ok := g.mirror.tasks(agent)
	session, _ := g.mirror.current()
	has := 0
	for _, l := range all {
		switch {
		case l.Until.Sub(now) <= 0:
			ok = false
		case n.training[l.Turn]:
			has++
		case !n.others[l.Turn]: // a new task
			ok = ok && session == r.Session
		}
	}
	if !ok || has < len(n.training) || len(n.pushed) > 0 {
		if all, err = g.Ledger.Counter.Tasks(ctx, agent); err != nil {
			return nil, g.refuse.unavailable(ctx, err)
		}
		g.mirror.set(agent, all)
		return all, nil
	}
	slices.SortFunc(all, func(a, b ledger.Task) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Round, b.Round), cmp.Compare(a.Client, b.Client))
	})
	return all, nil
}

// look returns the gateway's news for an agent.
func (g *Gateway) look(ctx context.Context, caller directory.Caller, r *v1.ExchangeRequest, n named) (*v1.ExchangeResponse, error) {
	agent, now := caller.ID, g.Ledger.Now()
	session, _ := g.mirror.current() // read before the leases
	leases, err := g.leases(ctx, agent, r, n, now)
	if err != nil {
		return nil, err
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
		case n.others[l.Turn]:
		case !n.training[l.Turn] && !n.pushed[l.Turn]:
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
		if err := g.Ledger.Counter.Extend(ctx, agent, key.run, key.round, keep[key], now.Add(g.Lease)); err != nil {
			return nil, g.refuse.unavailable(ctx, err)
		}
		g.mirror.forget(agent) // because leases that have ended were not extended
	}
	verdicts, err := g.verdicts(ctx, agent, r.Pushed, asked)
	if err != nil {
		return nil, g.refuse.unavailable(ctx, err)
	}
	over, err := g.obsolete(ctx, agent, r.Training, n, asked)
	if err != nil {
		return nil, g.refuse.unavailable(ctx, err)
	}
	verdicts = append(verdicts, over...)
	forked, err := g.heads.forked(ctx, agent, r.Heads)
	if err != nil {
		return nil, err
	}
	tasks, err := g.tasks.of(ctx, fresh[:min(len(fresh), turnsOfClient*g.Clients)], r.Heads, now)
	if err != nil {
		return nil, g.refuse.unavailable(ctx, err)
	}
	adapt, err := g.tasks.adapt(ctx, agent, r.Heads)
	if err != nil {
		return nil, g.refuse.unavailable(ctx, err)
	}
	open := func(v *v1.Verdict) bool {
		return v.Outcome == v1.Outcome_OUTCOME_ACCEPTED || v.Outcome == v1.Outcome_OUTCOME_UNKNOWN
	}
	busy := len(tasks) > 0 || slices.ContainsFunc(verdicts, open)
	return &v1.ExchangeResponse{
		Tasks: tasks, Verdicts: verdicts, NextContactMs: g.pace(busy, agent).Milliseconds(), Announce: !caller.Hosts, Releases: g.offers.to(r), Adapt: adapt, Forked: forked,
		Session: session,
	}, nil
}

// holdTime returns how long to hold a call without news. It returns 0 for an agent that has
// work, and for all agents of a fleet that is so large that agents close their connections.
func (g *Gateway) holdTime(r *v1.ExchangeRequest, s *v1.ExchangeResponse) time.Duration {
	if r.WaitMs <= 0 || len(r.Enrolments) > 0 || namesIn(r) > heavyNames || len(r.Training)+len(r.Pushed)+len(s.Tasks)+len(s.Verdicts)+len(s.Adapt)+len(s.Forked) > 0 || s.Announce || s.Releases != nil {
		return 0
	}
	switch s.GetReceived().GetOutcome() {
	case v1.Outcome_OUTCOME_UNSPECIFIED, v1.Outcome_OUTCOME_COUNTED, v1.Outcome_OUTCOME_CLOSED:
	default:
		return 0 // the agent has more to send or to request
	}
	// Do not hold a call that begins while the gateway is shutting down.
	if _, fresh := g.mirror.current(); !fresh || g.ending.Load() || g.Pace.Of(g.agents.Load()) > standing {
		return 0
	}
	return min(time.Duration(min(r.WaitMs, holdFor.Milliseconds()))*time.Millisecond, holdFor)
}

// wait returns news for an agent, and holds the call until there is news. A held call occupies
// no slot, no lane and no memory for its message, but counts as one of its agent's concurrent
// calls. It ends when the agent is revoked.
func (g *Gateway) wait(ctx context.Context, caller directory.Caller, r *v1.ExchangeRequest, n named, received *v1.Received) (s *v1.ExchangeResponse, err error) {
	var woken <-chan struct{}
	if r.WaitMs > 0 { // before looking, so that nothing is missed
		ch, stop := g.mirror.watch(caller.ID)
		defer stop()
		woken = ch
	}
	var timer *time.Timer
	for over := false; ; {
		if s, err = g.look(ctx, caller, r, n); err != nil {
			return nil, err
		}
		s.Received = received
		left := g.holdTime(r, s)
		if over || left == 0 {
			break
		}
		if timer == nil {
			giveUp(ctx)
			g.metrics.held.Inc()
			defer g.metrics.held.Dec()
			timer = time.NewTimer(left)
			defer timer.Stop()
			g.contacts.note(caller.ID, time.Now(), left)
		}
		select {
		case <-woken:
			over = g.ending.Load()
		case <-timer.C:
			over = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if caller, err = g.callers.known(ctx); err != nil {
			return nil, err
		}
	}
	if timer != nil && len(s.Tasks) == 0 && !g.ending.Load() {
		s.NextContactMs = 1 // the agent has already waited
	}
	if received.GetOutcome() == v1.Outcome_OUTCOME_UNKNOWN {
		s.NextContactMs = max(g.pace(true, caller.ID), keeperPause).Milliseconds()
	}
	g.contacts.note(caller.ID, time.Now(), time.Duration(s.NextContactMs)*time.Millisecond)
	return s, nil
}

// giveUp releases the resources that a call occupies while it is being served.
func giveUp(ctx context.Context) {
	leaveGate(ctx)
	if leave, ok := ctx.Value(laneKey{}).(func()); ok {
		leave()
	}
	if b, ok := ctx.Value(bodyKey{}).(*body); ok {
		b.done()
	}
}

// addBlobs adds the blobs of tasks that an agent does not have, if they are small.
func (g *Gateway) addBlobs(ctx context.Context, r *v1.ExchangeRequest, s *v1.ExchangeResponse) {
	if len(s.Tasks)+len(s.Adapt) == 0 {
		return
	}
	var added []string
	size := 0
	for _, tasks := range [][]*v1.Task{s.Tasks, s.Adapt} {
		for _, t := range tasks {
			for _, hash := range [...]string{t.Plan, t.Weights, t.Control} {
				if hash == "" || has(r.Have, hash) || slices.Contains(added, hash) {
					continue
				}
				added = append(added, hash)
				b, err := g.Blobs.Get(ctx, hash)
				if err != nil {
					continue // the agent fetches the blob and learns why it cannot be read
				}
				if len(b) <= maxInline && size+len(b) <= maxBlobs {
					s.Blobs, size = append(s.Blobs, b), size+len(b)
				}
			}
		}
	}
}

// has reports whether a blob is among those that an agent has.
func has(have [][]byte, hash string) bool {
	var sum [sha256.Size]byte
	if len(hash) != hex.EncodedLen(len(sum)) {
		return false
	}
	if _, err := hex.Decode(sum[:], []byte(hash)); err != nil {
		return false
	}
	return slices.ContainsFunc(have, func(h []byte) bool { return bytes.Equal(h, sum[:]) })
}

// turns returns the set of turns that a request names. It refuses a request with more turns
// than an agent can have.
func (g *Gateway) turns(all []*v1.Turns) (map[ledger.Turn]bool, error) {
	if len(all) > maxRounds {
		// Limit the number of rounds, because each needs a query.
		return nil, g.refuse.invalid("clients", "a request may name turns of %d rounds, this one names %d", maxRounds, len(all))
	}
	if len(all) == 0 {
		return nil, nil
	}
	set := map[ledger.Turn]bool{}
	named := 0
	for _, t := range all {
		if named += len(t.Clients); len(t.Clients) > g.Clients || named > turnsOfClient*g.Clients {
			return nil, g.refuse.invalid("clients", "a request may not name more turns than %d clients can have", g.Clients)
		}
		for _, c := range t.Clients {
			if !validName(t.Run) || !validName(c) {
				return nil, g.refuse.invalid("name", "a name is empty, longer than %d bytes, or has unprintable characters", nameBytes)
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
	return time.Duration(float64(p) * (0.8 + 0.4*g.Random(agent)))
}

// verdicts returns the outcomes of pushed results. If a turn is still open, its result has not
// arrived or is waiting in a gateway, so the agent sends it again.
func (g *Gateway) verdicts(ctx context.Context, agent string, pushed []*v1.Turns, asked map[ledger.Turn]bool) (all []*v1.Verdict, err error) {
	for _, t := range pushed {
		waiting, over := splitAsked(t, asked)
		by := map[v1.Outcome][]string{v1.Outcome_OUTCOME_UNKNOWN: waiting}
		if len(over) > 0 {
			where, err := g.Ledger.Counter.Outcomes(ctx, agent, t.Run, t.Round, over)
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

// outcomes maps the state of a turn that is no longer open to the outcome of its result.
var outcomes = map[ledger.TurnState]v1.Outcome{
	ledger.Closed: v1.Outcome_OUTCOME_CLOSED, ledger.Held: v1.Outcome_OUTCOME_ACCEPTED, ledger.Counted: v1.Outcome_OUTCOME_COUNTED,
}

// splitAsked returns the clients whose turns are open, and those whose turns are not.
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
func (g *Gateway) obsolete(ctx context.Context, agent string, training []*v1.Turns, n named, asked map[ledger.Turn]bool) (all []*v1.Verdict, err error) {
	for _, t := range training {
		_, over := splitAsked(t, asked)
		over = slices.DeleteFunc(over, func(c string) bool { return n.others[ledger.Turn{Run: t.Run, Round: t.Round, Client: c}] })
		if len(over) == 0 {
			continue
		}
		where, err := g.Ledger.Counter.Outcomes(ctx, agent, t.Run, t.Round, over)
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
