package fleetload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/round"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/terms"
)

// private contains the data about private rounds that all agents of a fleet share. The data is
// computed only once, because computing it takes CPU time from the server under test.
type private struct {
	mu     sync.Mutex
	plans  map[string]*terms.Terms // by blob
	rounds map[maskedKey]*masked
	spare  sync.Pool // of *[]uint64
}

type maskedKey struct {
	run   string
	round int64
}

// masked contains the description for which results of a round are masked, and the vector that
// all agents mask.
type masked struct {
	keepers  []member.Pin
	contexts []*mask.Context
	vector   []uint64
}

// memberKey is the key with which an agent has enrolled with a keeper.
type memberKey struct {
	mask.Key
	day int64
}

const (
	maxMaskedRounds = 8
	askReceipt      = 200 * time.Millisecond
)

// enrol makes the agent a member of the keepers that the server has announced.
func (a *agent) enrol(ctx context.Context, statements [][]byte) error {
	for _, text := range statements {
		s, err := member.ReadStatement(text)
		if err != nil {
			return err
		}
		pin := member.PinOf(s.Identity)
		if _, is := a.keys[pin]; is {
			continue
		}
		k := memberKey{mask.NewKey(), mask.Day(time.Now())}
		sealed, err := member.Seal(s, a.id, &k.Key, k.day, member.Code{})
		if err != nil {
			return err
		}
		receipt, err := a.receipt(ctx, &v1.Enrolment{Keeper: pin[:], Sealed: sealed})
		if err != nil {
			return err
		}
		if !member.ValidReceipt(receipt, &k.Key, s.Fleet, a.id, pin) {
			return fmt.Errorf("keeper %s sent a wrong receipt or a refusal: %q", pin, receipt.Refused)
		}
		if a.keys == nil {
			a.keys = map[member.Pin]memberKey{}
		}
		a.keys[pin] = k
	}
	return nil
}

// receipt sends an enrolment repeatedly until its keeper has responded.
func (a *agent) receipt(ctx context.Context, e *v1.Enrolment) (*v1.Receipt, error) {
	for {
		r := &v1.ExchangeResponse{}
		if err := a.line.call(ctx, v1.AgentServiceExchangeProcedure, &v1.ExchangeRequest{Enrolments: []*v1.Enrolment{e}}, r); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(r.Receipts, func(x *v1.Receipt) bool { return string(x.Keeper) == string(e.Keeper) }); i >= 0 {
			return r.Receipts[i], nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(askReceipt):
		}
	}
}

// masked returns the numbers of a turn with the masks of all keepers, and the nonce. The caller
// returns the numbers with [numbers.put].
func (a *agent) masked(ctx context.Context, t *pendingTurn, part int64) (b *[]byte, nonce mask.Nonce, err error) {
	m, err := a.fleet.private.round(ctx, a, t.Task, t.size)
	if err != nil {
		return nil, nonce, fmt.Errorf("masking: %w", err)
	}
	v, ok := a.fleet.private.spare.Get().(*[]uint64)
	if !ok {
		v = new([]uint64)
	}
	defer a.fleet.private.spare.Put(v)
	*v = append((*v)[:0], m.vector...)
	nonce = mask.NewNonce()
	for i, pin := range m.keepers {
		k, is := a.keys[pin]
		if !is {
			return nil, nonce, fmt.Errorf("the agent is not a member of keeper %s", pin)
		}
		c := *m.contexts[i]
		member.Of(&c, &v1.MaskedResult{Agent: a.id, Part: part, Clients: 1})
		for ; k.day < c.Day; k.day++ {
			k.Key = k.Next()
		}
		seed := k.Seed(&c, nonce)
		seed.Add(*v)
	}
	if b, ok = a.fleet.numbers.spare.Get().(*[]byte); !ok {
		b = new([]byte)
	}
	*b = round.AppendVector((*b)[:0], *v)
	return b, nonce, nil
}

// round returns the description for which the results of a task are masked.
func (p *private) round(ctx context.Context, a *agent, t *v1.Task, size int) (*masked, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := maskedKey{t.Run, t.Round}
	if m := p.rounds[key]; m != nil {
		return m, nil
	}
	plan, err := p.plan(ctx, a, t)
	if err != nil {
		return nil, err
	}
	q, err := plan.MaskedRound(t)
	if err != nil {
		return nil, err
	}
	m := &masked{}
	for _, text := range t.Privacy.Statements {
		s, err := member.ReadStatement(text)
		if err != nil {
			return nil, err
		}
		m.keepers, m.contexts = append(m.keepers, member.PinOf(s.Identity)), append(m.contexts, member.Context(s, q))
	}
	r := &terms.Result{Version: int(t.Version), Limits: terms.LimitsOf(t.Limits), Numbers: a.fleet.numbers.of(size), Shares: []terms.Share{{Client: "any", Examples: 64, Steps: 4, TrainLoss: 0.1}}}
	fold := round.NewFold(plan.Rules)
	if err := plan.Add(fold, r, nil); err != nil {
		return nil, err
	}
	if m.vector, err = plan.Rules.Vector(plan.Shared).Encode(fold, &round.Sizes{Examples: 64, Steps: 4}); err != nil {
		return nil, err
	}
	if p.rounds == nil || len(p.rounds) >= maxMaskedRounds {
		p.rounds = map[maskedKey]*masked{}
	}
	p.rounds[key] = m
	return m, nil
}

// plan returns the terms of a task's run.
func (p *private) plan(ctx context.Context, a *agent, t *v1.Task) (*terms.Terms, error) {
	if known := p.plans[t.Plan]; known != nil {
		return known, nil
	}
	var text []byte
	err := a.line.get(ctx, "/v1/blobs/"+t.Plan, func(code int, body io.Reader) (err error) {
		if text, err = io.ReadAll(limited(body)); err == nil && code != http.StatusOK {
			err = fmt.Errorf("the server returned %d", code)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the plan: %w", err)
	}
	made, err := terms.Read(string(text), t.Plan, t.Fleet)
	if err != nil {
		return nil, err
	}
	if !made.Private() {
		return nil, errors.New("the task is private, but its plan is not")
	}
	if p.plans == nil {
		p.plans = map[string]*terms.Terms{}
	}
	p.plans[t.Plan] = made
	return made, nil
}

// result returns the result of a turn, and a function that frees the result's memory.
func (a *agent) result(ctx context.Context, t *pendingTurn) (r *v1.Result, free func(), err error) {
	r = &v1.Result{Run: t.Run, Round: t.Round, Version: t.Version}
	var chunk *[]byte
	if t.Privacy != nil {
		var nonce mask.Nonce
		r.Part = int64(slices.Index(a.clients, t.client))
		if chunk, nonce, err = a.masked(ctx, t, r.Part); err != nil {
			return nil, nil, err
		}
		r.Form, r.Nonce, r.Shares = v1.Form_FORM_MASKED, nonce[:], []*v1.Share{{Client: t.client}}
		r.Checksum = protocol.Checksum(*chunk)
	} else {
		a.pushes++
		chunk, r.Checksum = a.fleet.numbers.take(t.size, a.no, a.pushes)
		r.Form, r.Evaluation = v1.Form_FORM_UPDATE, a.evaluation(t.Round)
		r.Shares = []*v1.Share{{Client: t.client, Examples: 64 + int64(a.no%1000), Steps: 4, TrainLoss: a.loss(t.Round)}}
	}
	r.Size, r.Chunk = int64(len(*chunk)), *chunk
	return r, func() { a.fleet.numbers.put(chunk) }, nil
}
