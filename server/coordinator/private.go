package coordinator

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// A closed round of a private plan has a sum of masked results. The plan's keepers compute the
// sum of the masks, only once. The request runs in the background, because a keeper can be
// unavailable for hours and other runs must not wait. The request is stored before it is sent,
// so that it is the same after a restart. Keepers answer only one request for a round.

// unmasking is a closed round's request to its keepers, and the outcome.
type unmasking struct {
	round  int64
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	waits  error // the reason why it is not done
	masks  []uint64
	chosen []int64
	err    error
}

func (u *unmasking) over() bool {
	if u == nil {
		return false
	}
	select {
	case <-u.done:
		return true
	default:
		return false
	}
}

func (u *unmasking) reason() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.waits
}

// mostRefusals is the number of consecutive rounds that keepers may refuse before the run ends.
const mostRefusals = 3

// openPrivate fixes the tasks of the machine's round before the first client is asked. If this
// is not possible yet, waits is the reason.
func (d *driver) openPrivate(x *ledger.Drive) (waits error, err error) {
	if !d.terms.Private() || d.opened == d.machine.Round() {
		return nil, nil
	}
	if s := d.machine.Situation(0); s.Asked == 0 && s.Running == 0 {
		statements, err := d.Keepers.Statements(d.terms.Plan.Privacy.Keepers)
		if err != nil {
			return err, nil
		}
		if err := d.Keepers.Approved(d.terms.Plan.Privacy.Keepers, d.terms.Blob); err != nil {
			return err, nil
		}
		b, err := proto.Marshal(&v1.Privacy{Statements: statements, Day: mask.Day(d.now())})
		if err != nil {
			return nil, fmt.Errorf("encoding the statements of keepers: %w", err)
		}
		if err := x.OpenPrivate(int64(d.machine.Round()), b); err != nil {
			return nil, err
		}
	}
	d.opened = d.machine.Round()
	return nil, nil
}

// waitForKeepers records whether the open round's results can be checked. While a keeper does
// not respond, these results wait at the gateways, and the deadline is suspended.
func (d *driver) waitForKeepers(now time.Time) {
	if !d.terms.Checks() {
		return
	}
	d.Keepers.Watch(d.terms.Plan.Privacy.Keepers)
	before := d.away
	if _, d.away = d.Keepers.Statements(d.terms.Plan.Privacy.Keepers); d.away != nil && before != nil {
		d.machine.Delay(max(now.Sub(d.looked), 0))
	}
	d.looked = now
}

// masks returns the unmasking of a closed round, or nil while the keepers have not answered.
func (d *driver) masks(ctx context.Context, r *ledger.Round) (*unmasking, error) {
	u := d.unmaskings[d.id]
	if u == nil || u.round != r.Round {
		d.forgetUnmasking(d.id)
		request, err := d.request(ctx, r)
		if err != nil || request == nil {
			return nil, err
		}
		u = d.unmask(ctx, r.Round, request)
	}
	if u.over() {
		d.merging = nil
		return u, nil
	}
	d.merging, d.nextLook = r, d.now().Add(lookEvery)
	return nil, d.ifCurrent(ctx, *r, func(x *ledger.Drive) error {
		if why := u.reason(); why != nil {
			return x.Explain(ledger.ReasonWaits, why.Error())
		}
		return nil
	})
}

// unmask begins to ask the keepers for the masks of a round.
func (d *driver) unmask(ctx context.Context, in int64, request []byte) *unmasking {
	ctx, cancel := context.WithCancel(ctx)
	u := &unmasking{round: in, cancel: cancel, done: make(chan struct{})}
	d.unmaskings[d.id] = u
	names, id := d.terms.Plan.Privacy.Keepers, d.id
	k := d.coordinator
	k.trainings.Go(func() {
		u.masks, u.chosen, u.err = k.Keepers.Masks(ctx, names, request, func(why error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.waits = why
		})
		close(u.done)
		k.Wake(id)
	})
	return u
}

// forgetUnmasking cancels a run's request to its keepers.
func (k *coordinator) forgetUnmasking(run string) {
	if u := k.unmaskings[run]; u != nil {
		u.cancel()
		delete(k.unmaskings, run)
	}
}

// request returns the request that a closed round sends to its keepers. If the request is not
// stored yet, it is built and stored first. It returns nil if the run has ended.
func (d *driver) request(ctx context.Context, r *ledger.Round) (request []byte, err error) {
	p, err := d.Ledger.PrivateRound(ctx, d.id, r.Round)
	if err != nil || len(p.Request) > 0 {
		return p.Request, err
	}
	q := &v1.KeeperReleaseRequest{}
	if q.Round, err = d.maskedRound(ctx, r, p.Privacy); err != nil {
		return nil, err
	}
	all, err := d.Ledger.Counter.Masks(ctx, d.id, r.LastBatch)
	if err != nil {
		return nil, err
	}
	if q.Results, err = maskedResults(d.id, all); err != nil {
		return nil, err
	}
	made, err := proto.MarshalOptions{Deterministic: true}.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encoding the request to keepers: %w", err)
	}
	err = d.ifCurrent(ctx, *r, func(x *ledger.Drive) (err error) {
		request, err = x.FixRequest(r.Round, made)
		return err
	})
	return request, err
}

// maskedResults returns masks as messages have them.
func maskedResults(run string, masks []ledger.Mask) (all []*v1.MaskedResult, err error) {
	for _, m := range masks {
		nonce, err := hex.DecodeString(m.Nonce)
		if err != nil {
			return nil, fmt.Errorf("%w: a nonce of run %s: %w", ledger.ErrDamaged, run, err)
		}
		all = append(all, &v1.MaskedResult{Agent: m.Agent, Part: m.Part, Clients: m.Clients, Nonce: nonce})
	}
	return all, nil
}

// maskedRound returns the round for which agents have masked their results.
func (d *driver) maskedRound(ctx context.Context, r *ledger.Round, privacy []byte) (*v1.MaskedRound, error) {
	p := &v1.Privacy{}
	if err := proto.Unmarshal(privacy, p); err != nil {
		return nil, fmt.Errorf("decoding the statements of keepers: %w", err)
	}
	v, err := d.Ledger.Version(ctx, d.id, r.Version)
	if err != nil {
		return nil, err
	}
	limits, err := terms.DecodeLimits(v.Limits)
	if err != nil {
		return nil, err
	}
	return d.terms.MaskedRound(&v1.Task{Run: d.id, Round: r.Round, Version: r.Version, Weights: v.Weights, Control: v.Control, Limits: limits, Privacy: p})
}

// unmasked returns the sum of a round's results. It also stores in r the values that are known
// only after unmasking. An error that wraps terms.ErrSum means that honest agents and keepers
// cannot have produced these results.
func (d *driver) unmasked(ctx context.Context, r *ledger.Round, u *unmasking) (*round.Fold, error) {
	sum := make([]uint64, d.terms.MaskedLen())
	add := func(numbers []byte) error {
		if err := round.AddVector(sum, numbers); err != nil {
			return fmt.Errorf("%w: a masked sum of run %s: %w", ledger.ErrDamaged, d.id, err)
		}
		return nil
	}
	clients, err := r.Counted, error(nil)
	if d.terms.Chooses() {
		clients, err = d.addChosen(ctx, r, u, add)
	} else {
		err = d.Ledger.Partials(ctx, d.id, r.LastBatch, func(p ledger.Partial) error { return add(p.Numbers) })
	}
	if err != nil {
		return nil, err
	}
	for i, m := range u.masks {
		sum[i] -= m
	}
	limits, err := d.terms.Limits(r.Version, func() ([]byte, error) {
		v, err := d.Ledger.Version(ctx, d.id, r.Version)
		return v.Limits, err
	})
	if err != nil {
		return nil, err
	}
	fold, sizes, err := d.terms.Unmasked(r.Version, clients, limits, sum)
	if err != nil {
		return nil, err
	}
	r.Loss = sizes.Loss() / float64(clients)
	r.Evaluation = ledger.Evaluation{Clients: sizes.Evaluated, RelativeMAE: sizes.RelativeMAE}
	return fold, nil
}

// addChosen adds the results that the keepers have chosen. It returns the number of clients in them.
func (d *driver) addChosen(ctx context.Context, r *ledger.Round, u *unmasking, add func([]byte) error) (clients int64, err error) {
	all, err := d.Ledger.Counter.Masks(ctx, d.id, r.LastBatch)
	if err != nil {
		return 0, err
	}
	left := map[string]bool{}
	for _, at := range u.chosen { // positions in the request, which has the same order
		if at >= int64(len(all)) {
			return 0, fmt.Errorf("%w: run %s has %d masks, but a keeper was asked about more", ledger.ErrDamaged, d.id, len(all))
		}
		left[all[at].Name()] = true
		clients += all[at].Clients
	}
	if len(left) == 0 {
		return 0, fmt.Errorf("%w: the keeper has chosen no results", terms.ErrSum)
	}
	err = d.Ledger.Singles(ctx, d.id, r.LastBatch, func(s ledger.Single) error {
		if !left[s.Client] {
			return nil
		}
		delete(left, s.Client)
		return add(s.Numbers)
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%w: %d masked results of run %s are missing", ledger.ErrDamaged, len(left), d.id)
	}
	return clients, err
}

// refused abandons a closed round that cannot be unmasked. Its clients stay counted, because the
// agents already know the verdict.
func (d *driver) refused(ctx context.Context, r ledger.Round, why error) error {
	next := int64(d.machine.Round())
	if refusal, ok := errors.AsType[*keepers.Refused](why); ok && refusal.Rule == ruleOnce {
		// Either this server was restored from a backup, or the run was rolled back on another
		// server.
		newest, err := d.Keepers.Newest(ctx, d.terms.Plan.Privacy.Keepers, d.id)
		if err != nil {
			return err
		}
		next = min(max(next, newest+1), int64(d.terms.Plan.Rounds))
	}
	d.forgetUnmasking(d.id)
	d.merging = nil
	d.machine.Restart(int(next), int(r.Version), d.elapsed(d.now()))
	text, err := d.machine.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encoding the state of the rounds: %w", err)
	}
	d.wave = fmt.Sprintf("round %d was abandoned: %v", r.Round+1, why)
	d.log.Warn("a round is abandoned because it cannot be unmasked", "round", r.Round+1, "error", why)
	d.metrics.rounds.WithLabelValues("refused").Inc()
	return d.ifCurrent(ctx, r, func(x *ledger.Drive) error {
		n, err := x.Refuse(r, why.Error(), string(text))
		switch {
		case err != nil:
			return err
		case n >= mostRefusals:
			_, err := end(x, ledger.Failed, fmt.Sprintf("%d rounds in a row could not be unmasked; %s", n, d.wave), d.now())
			return err
		case d.machine.Round() < d.terms.Plan.Rounds:
			return d.open(x)
		}
		return nil
	})
}

// ruleOnce is the rule by which a keeper refuses a round that it has already released.
const ruleOnce = "once"

// final reports whether an unmasking error is permanent.
func final(err error) bool {
	var refused *keepers.Refused
	return errors.As(err, &refused) || errors.Is(err, terms.ErrSum)
}
