package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed"
	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/round"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/product"
	"loadstar/server/terms"
)

// masker is a member of a private fleet: an agent of the protocol with a member key. If it has
// several clients, it sends one result for each.
type masker struct {
	*Agent
	insider
	clients []string
	seal    []byte // its first enrolment
}

// club is the binary's server with a keeper and with members that mask.
type club struct {
	*Server
	v         *vault // nil if the keeper is in this process
	pin       member.Pin
	statement *v1.KeeperStatement
	members   []*masker
}

const clubPlan = `name: club
algorithm: fedavg
rounds: %d
model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}
schedule: {deadline: 12h, quorum: 0.5}
privacy: {mode: private, keepers: [auditor], least: 2, check: %s}
evaluate: {every: 0}
`

// serveKept starts a server with a keeper.
func (f *Fleet) serveKept(ctx context.Context, at string, pin member.Pin) *club {
	s := must(f.Serve(ctx, "--set", fmt.Sprintf("keepers=[\"auditor=https://%s %s\"]", at, pin)))
	return &club{Server: s, pin: pin}
}

// identity returns the identity by which keepers recognise the server.
func (c *club) identity() (string, error) {
	text := line(c.Log(), "keepers know this server by its identity")
	at := strings.Index(text, "sha256:")
	if at < 0 || len(text) < at+71 {
		return "", fmt.Errorf("the server does not log its identity: %s", text)
	}
	return text[at : at+71], nil
}

// club starts a keeper and a server, and enrols honest members and a hostile one with as many
// clients as the attack needs.
func (f *Fleet) club(ctx context.Context, hostile int) *club {
	v := f.vault(ctx, "keeper", "least: 2", "quorum: 0")
	c := f.serveKept(ctx, v.at, v.pin)
	id := must(c.identity())
	v.set("servers: [" + id + "]")
	v.again(ctx)
	c.v = v
	for _, x := range []struct {
		name    string
		clients int
	}{{"honest-a", 2}, {"honest-b", 1}, {"honest-c", 1}, {"hostile", hostile}} {
		m := c.joinClub(ctx, x.name, x.clients)
		m.seal = must(member.Seal(c.statement, m.ID, &m.key, m.day, v.invite(ctx, 1)))
		check(m.enrolWith(ctx, c.pin, m.seal))
	}
	return c
}

// joinClub joins an agent to the server, waits until the server passes on its keeper's
// statement, and adds the agent to the club.
func (c *club) joinClub(ctx context.Context, name string, clients int) *masker {
	a := must(c.JoinOne(ctx, name))
	m := &masker{Agent: a, insider: insider{a.ID, mask.NewKey(), mask.Day(time.Now())}, clients: names(name+"-", clients)}
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		r, err := a.Announce(ctx, &v1.AnnounceRequest{Clients: m.clients, Inputs: weather, StepSeconds: 3600})
		if err != nil || len(r.Statements) == 0 {
			return false, err
		}
		c.statement, err = member.ReadStatement(r.Statements[0])
		return err == nil, err
	})
	if err != nil || !ok {
		check(errors.Join(errors.New("the server does not know its keeper"), err))
	}
	c.members = append(c.members, m)
	return m
}

// enrolWith sends a seal to the keeper, through the server. A refusal is an error that
// contains its rule.
func (m *masker) enrolWith(ctx context.Context, pin member.Pin, sealed []byte) error {
	r, err := m.checkIn(ctx, &v1.ExchangeRequest{Enrolments: []*v1.Enrolment{{Keeper: pin[:], Sealed: sealed}}})
	if err != nil {
		return err
	}
	if len(r.Receipts) != 1 {
		return fmt.Errorf("%d receipts for one enrolment", len(r.Receipts))
	}
	return refusedReceipt(r.Receipts[0])
}

// privateRun starts a private run with all members, and returns one result of its first round
// for each client.
func (c *club) privateRun(ctx context.Context, rounds int, check string) (run string, err error) {
	clients := 0
	for _, m := range c.members {
		clients += len(m.clients)
	}
	return c.begin(ctx, fmt.Sprintf(clubPlan, rounds, check), int64(clients))
}

// tasked waits for the member's task in a round, and returns it with the terms of the run.
func (c *club) tasked(ctx context.Context, m *masker, run string, number int64) (task *v1.Task, t *terms.Terms) {
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		r, err := m.checkIn(ctx, &v1.ExchangeRequest{})
		for _, x := range r.GetTasks() {
			if x.Run == run && x.Round == number {
				task = x
			}
		}
		return task != nil, err
	})
	if err != nil || !ok {
		check(errors.Join(fmt.Errorf("%s receives no task", m.ID), err))
	}
	r := must(c.look(ctx, run))
	return task, must(terms.Read(r.Plan, task.Plan, task.Fleet))
}

// masked returns a result of some clients. Each of their updates is as large as the limits of
// the round allow. change may modify the vector before it is masked, and key is the key of the
// mask.
func (m *masker) masked(c *club, t *terms.Terms, task *v1.Task, part int64, key mask.Key, clients []string, change func(x []uint64, blocks []mask.Block)) *v1.Result {
	limits := terms.LimitsOf(task.Limits)
	if limits.Norm == 0 {
		check(errors.New("the round has no limit of norms"))
	}
	fold, sizes := round.NewFold(t.Rules), &round.Sizes{}
	for range clients {
		delta := make([]float32, t.Shared)
		for i := range delta {
			delta[i] = float32(0.999 * limits.Norm / math.Sqrt(float64(t.Shared)) * float64(1-2*(i%2)))
		}
		u := &fed.Update{Version: int(task.Version), Examples: 1, Claimed: 100, Steps: 4, TrainLoss: 0.1, Delta: delta, Norm: 0.999 * limits.Norm}
		check(fold.Add(u, make([]float32, t.Shared)))
		sizes.Add(u)
	}
	v := t.Rules.Vector(t.Shared)
	x := must(v.Encode(fold, sizes))
	if change != nil {
		change(x, v.Blocks(limits))
	}
	q := must(t.MaskedRound(task))
	nonce := mask.NewNonce()
	context := member.Context(c.statement, q)
	member.Of(context, &v1.MaskedResult{Agent: m.ID, Part: part, Clients: int64(len(clients))})
	seed := (&insider{key: key, day: m.day}).seed(context, q.Day, nonce)
	seed.Add(x)
	b := round.AppendVector(nil, x)
	r := &v1.Result{
		Run: task.Run, Round: task.Round, Version: task.Version, Form: v1.Form_FORM_MASKED, Nonce: nonce[:], Part: part,
		Checksum: protocol.Checksum(b), Size: int64(len(b)), Chunk: b,
	}
	for _, name := range clients {
		r.Shares = append(r.Shares, &v1.Share{Client: name})
	}
	return r
}

// pushed sends a result until it is decided. It returns whether the result was counted, and
// otherwise the reason.
func (m *masker) pushed(ctx context.Context, r *v1.Result) (counted bool, reason string, err error) {
	var p *v1.Received
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		var err error
		p, err = m.push(ctx, proto.CloneOf(r))
		return err == nil && p.GetOutcome() != v1.Outcome_OUTCOME_ACCEPTED, err
	})
	if err != nil || !ok {
		return false, "", errors.Join(errors.New("a result is not decided"), err)
	}
	return p.GetOutcome() == v1.Outcome_OUTCOME_COUNTED, p.GetReason(), nil
}

// honestly sends honest results of all members but the hostile ones; all honest results must be
// counted.
func (c *club) honestly(ctx context.Context, run string, number int64, hostile ...*masker) {
	for _, m := range c.members {
		if slices.Contains(hostile, m) {
			continue
		}
		task, t := c.tasked(ctx, m, run, number)
		r := m.masked(c, t, task, 0, m.key, m.clients, nil)
		if counted, reason, err := m.pushed(ctx, r); err != nil || !counted {
			check(errors.Join(fmt.Errorf("an honest result of %s is not counted: %s", m.ID, reason), err))
		}
	}
}

// result waits until a round is over, and returns the run.
func (c *club) result(ctx context.Context, run string, number int64) (*v1.Run, error) {
	var r *v1.GetRunResponse
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		var err error
		r, err = c.look(ctx, run)
		return err == nil && (r.Run.Round > number || r.Run.State == "finished" || r.Run.State == "failed"), err
	})
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("round %d does not end", number+1), err)
	}
	return r.Run, nil
}

// hostileResult is a false result of one client.
type hostileResult struct {
	what   string
	key    func(mask.Key) mask.Key
	change func(x []uint64, blocks []mask.Block)
}

// hostileRound makes a member send false results of one client each, and then the others send
// honest ones. It returns which of the false results were counted, and why the others were
// not.
func (c *club) hostileRound(ctx context.Context, run string, all []hostileResult) (counted, reasons []string) {
	m := c.members[len(c.members)-1]
	task, t := c.tasked(ctx, m, run, 0)
	for i, h := range all {
		key := m.key
		if h.key != nil {
			key = h.key(key)
		}
		r := m.masked(c, t, task, int64(i), key, m.clients[i:i+1], h.change)
		yes, reason, err := m.pushed(ctx, r)
		if err != nil {
			check(fmt.Errorf("%s: %w", h.what, err))
		}
		if yes {
			counted = append(counted, h.what)
		} else {
			reasons = append(reasons, reason)
		}
	}
	c.honestly(ctx, run, 0, m)
	return counted, reasons
}

// hostileMember plays a round with false results and check: norm. No false result may be counted,
// and the others must be merged. Without the check, all results must be counted.
func (f *Fleet) hostileMember(ctx context.Context, all []hostileResult) (broken *Result, spoiled string) {
	c := f.club(ctx, len(all))
	open := must(c.privateRun(ctx, 1, "none"))
	counted, reasons := c.hostileRound(ctx, open, all)
	if len(counted) < len(all) {
		check(fmt.Errorf("without the check only %v are counted, so this attack proves nothing: %v", counted, reasons))
	}
	r := must(c.result(ctx, open, 0))
	if spoiled = r.Reason; r.Version > 0 {
		spoiled = ""
	}
	checked := must(c.privateRun(ctx, 1, "norm"))
	counted, reasons = c.hostileRound(ctx, checked, all)
	if len(counted) > 0 {
		r := succeeded("%s: counted", strings.Join(counted, ", "))
		return &r, ""
	}
	for i, why := range reasons {
		if !strings.Contains(why, "the check of keeper auditor refused the result") {
			check(fmt.Errorf("%s: rejected for another reason: %s", all[i].what, why))
		}
	}
	r = must(c.result(ctx, checked, 0))
	if r.Version != 1 {
		r := succeeded("the results are rejected, but the round is not merged: %s", r.Reason)
		return &r, ""
	}
	return nil, spoiled
}

// garbageMask succeeds if a result that is random, or masked with another key, is counted with
// check: norm, or if the honest results of its round are not merged. With check: none, it must
// be counted and spoil the round.
func garbageMask(ctx context.Context, f *Fleet) (Result, error) {
	noise := func(x []uint64, _ []mask.Block) {
		b := make([]byte, 8*len(x))
		_, _ = rand.Read(b) // never fails
		clear(x)
		_ = round.AddVector(x, b) // the length is correct
	}
	broken, spoiled := f.hostileMember(ctx, []hostileResult{
		{what: "random numbers", change: noise},
		{what: "the mask of another key", key: func(mask.Key) mask.Key { return mask.NewKey() }},
		{what: "the mask of the next day", key: func(k mask.Key) mask.Key { return k.Next() }},
	})
	if broken != nil {
		return *broken, nil
	}
	if !strings.Contains(spoiled, terms.ErrSum.Error()) {
		return Result{}, fmt.Errorf("without the check the round is not spoiled, so this attack proves nothing: %s", spoiled)
	}
	return repelled("3 forms are rejected by the check of the keeper, and the honest results are merged; with check: none the round is abandoned"), nil
}

// tripleNorm succeeds if an update of three times the limit is counted with check: norm, regardless
// of how the excess is distributed. With check: none, it must be counted. Honest updates at the
// limit must be counted.
func tripleNorm(ctx context.Context, f *Fleet) (Result, error) {
	const times = 3
	broken, _ := f.hostileMember(ctx, []hostileResult{
		{what: "three limits", change: func(x []uint64, b []mask.Block) {
			for i := range x[:b[0].Length] {
				x[i] *= times
			}
		}},
		{what: "one number of three limits", change: func(x []uint64, b []mask.Block) {
			clear(x[:b[0].Length])
			x[0] = uint64(times * b[0].Limit)
		}},
		{what: "2^63 in two places", change: func(x []uint64, _ []mask.Block) {
			x[0] += 1 << 63
			x[1] += 1 << 63
		}},
	})
	if broken != nil {
		return *broken, nil
	}
	return repelled("3 forms are rejected by the check of the keeper, and honest updates at the limit are merged; with check: none all are counted"), nil
}

// replayEnrolment succeeds if a seal that was sent before creates a member. The seal may be
// another agent's, or an agent's own after the keeper's administrators have reset or revoked
// the agent. A repeated seal of an existing member must change nothing.
func replayEnrolment(ctx context.Context, f *Fleet) (Result, error) {
	open := f.lyingVault(ctx, "open", 1, "members: server")
	again := open.members[0]
	must(open.people(ctx, "member", "reset", again.name))
	if err := open.enrol(ctx, again, member.Code{}); err != nil {
		return Result{}, fmt.Errorf("without invitations a replayed enrolment makes no member, so this attack proves nothing: %w", err)
	}
	c := f.club(ctx, 1)
	before := must(c.v.people(ctx, "member", "list", "--json"))
	reset, revoked, hostile := c.members[0], c.members[1], c.members[3]
	if err := reset.enrolWith(ctx, c.pin, reset.seal); err != nil {
		return Result{}, fmt.Errorf("a member cannot repeat its enrolment: %w", err)
	}
	if after, err := c.v.people(ctx, "member", "list", "--json"); err != nil {
		return Result{}, err
	} else if after != before {
		return succeeded("a repeated enrolment changes the members from %s to %s", before, after), nil
	}
	must(c.v.people(ctx, "member", "reset", reset.ID))
	must(c.v.people(ctx, "member", "revoke", revoked.ID))
	damaged := slices.Clone(hostile.seal)
	damaged[len(damaged)-1] ^= 1
	replay := func(m *masker, sealed []byte) func() error {
		return func() error { return m.enrolWith(ctx, c.pin, sealed) }
	}
	attempts := []attempt{
		{"the seal of another member", "member", replay(hostile, c.members[2].seal)},
		{"a damaged seal", "member", replay(hostile, damaged)},
		{"a member's own seal after it was reset", "invitation", replay(reset, reset.seal)},
		{"a member's own seal after it was revoked", "member", replay(revoked, revoked.seal)},
	}
	if broken, err := refusals(attempts); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	return repelled("%d replays are refused by rules %s, and a repeated enrolment changes nothing; without invitations a replay makes a member", len(attempts), rulesOf(attempts)), nil
}
