// Package keeper implements the party that holds the keys of masks. Members enrol their keys
// with it. It releases the sum of the masks of a round once, if its own rules allow it, and
// never receives a masked vector. With check: norm it also estimates the norm of each result
// from 32 products of the result with random vectors.
//
// Before the keeper sends an answer, it stores all changes: members, judged results and
// released rounds in keeper.db, and yesterday's keys in keys.db. A keeper that has lost
// keys.db, or was restored from a backup without it, cannot compute the masks of any earlier
// round.
package keeper

import (
	"crypto/ed25519"
	"crypto/hmac"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/boltfile"
	v1 "loadstar/proto/loadstar/v1"
)

// Keeper is safe for concurrent use. It answers one call at a time. Each exported method takes
// the lock, and the parts of the keeper have no locks.
type Keeper struct {
	identity ed25519.PrivateKey

	mu sync.Mutex
	*store
	membership *membership
	judging    *judging
	releases   *releases
	// deferred is the write that the planted mistake "record" postpones.
	deferred func() error
}

// Options configure a keeper.
type Options struct {
	Fleet string
	Rules *v1.KeeperRules
	// Approved is true if a plan needs the approval of the keeper's administrators.
	Approved bool
	// Daily is the maximum number of rounds that are released in a day, over all runs; 0 means
	// no limit.
	Daily int64
	Log   *slog.Logger
	Now   func() time.Time

	// The following fields are for tests.

	off    map[string]bool   // disabled rules
	gate   func(step string) // called at each write; does not return if the keeper is killed there
	random io.Reader
}

// on reports whether a rule applies. Tests disable rules.
func (o *Options) on(rule string) bool { return !o.off[rule] }

// step is called at each write, for crash tests.
func (o *Options) step(name string) {
	if o.gate != nil {
		o.gate(name)
	}
}

func (o *Options) seconds() int64 { return o.Now().Unix() }

func (o *Options) today() int64 { return mask.Day(o.Now()) }

// The rules, as refusals name them.
const (
	ruleRequest    = "request"
	ruleOnce       = "once"
	ruleLeast      = "least"
	ruleQuorum     = "quorum"
	ruleCell       = "cell"
	ruleMember     = "member"
	ruleInvitation = "invitation"
	ruleAge        = "age"
	ruleTwice      = "twice"
	ruleDay        = "day"
	rulePlan       = "plan"
	ruleDaily      = "daily"
	ruleCheck      = "check"
	ruleKeepers    = "keepers"
	ruleRecord     = "record" // an answer is sent only after its record; this rule refuses nothing
)

// Refusal names the rule that refused a call. The refused call has changed nothing.
type Refusal struct{ Rule, Reason string }

func (r *Refusal) Error() string { return "rule " + r.Rule + ": " + r.Reason }

func refuse(rule, format string, a ...any) error { return &Refusal{rule, fmt.Sprintf(format, a...)} }

// Open opens a keeper's folder, which [Create] has made. While it is open, no other process can
// open it.
func Open(dir string, o Options) (k *Keeper, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.random == nil {
		o.random = crand.Reader
	}
	if err := member.CheckRules(o.Rules); err != nil {
		return nil, err
	}
	if o.Fleet == "" || len(o.Fleet) > member.MaxName {
		return nil, fmt.Errorf("the name of the fleet has %d bytes, want 1 to %d", len(o.Fleet), member.MaxName)
	}
	identity, err := readIdentity(dir)
	if err != nil {
		return nil, err
	}
	k = &Keeper{identity: identity, store: &store{options: o, pin: member.PinOf(identity.Public().(ed25519.PublicKey))}}
	k.membership = &membership{k.store}
	k.judging = &judging{k.store, k.membership}
	k.releases = &releases{k.store, k.membership, k.judging}
	if k.db, err = boltfile.Open(filepath.Join(dir, "keeper.db")); err != nil {
		return nil, fmt.Errorf("%w: two keepers on one folder would release twice", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	if err := k.ring.open(filepath.Join(dir, "keys.db"), o.random); err != nil {
		return k, err
	}
	if err := k.load(); err != nil {
		return k, err
	}
	if err := k.begin(); err != nil {
		return k, err
	}
	return k, k.renew()
}

// OpenSimulated is like Open, for a simulation. The keeper calls gate at each write, and draws
// repeatable random numbers from random. Only tests call it.
func OpenSimulated(dir string, o Options, gate func(step string), random io.Reader) (*Keeper, error) {
	o.gate, o.random = gate, random
	return Open(dir, o)
}

// Close closes the keeper's files. All writes are already on disk.
func (k *Keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.db.Close(), k.ring.close())
}

// Pin returns the pin of the keeper's identity.
func (k *Keeper) Pin() member.Pin { return k.pin }

// fresh prepares for a call: it reads the state again after a failed write, renews the statement,
// and replaces old keys.
func (k *Keeper) fresh() error {
	if k.deferred != nil {
		write := k.deferred
		k.deferred = nil
		if err := write(); err != nil {
			return err
		}
	}
	if k.stale {
		if err := k.load(); err != nil {
			return err
		}
		k.stale = false
	}
	// Renew the statement before its sealing key can be deleted. Without its key, renew would take the
	// keeper for one that has lost its keys, and change the number for which open rounds are masked.
	if err := k.renew(); err != nil {
		return err
	}
	return k.rotate()
}

// Rotate replaces keys that are too old, and renews the statement. The keeper also does this at
// every call. Rotate does it even when no server calls.
func (k *Keeper) Rotate() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fresh()
}

// State returns the keeper's statement and members.
func (k *Keeper) State(q *v1.KeeperStateRequest) (*v1.KeeperStateResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fresh(); err != nil {
		return nil, err
	}
	if q.GetFleet() != "" { // an empty name is allowed, because a server learns the name from the statement
		if err := k.checkFleet(q.Fleet); err != nil {
			return nil, err
		}
	}
	a := &v1.KeeperStateResponse{Statement: k.signed(), Revision: binary.BigEndian.AppendUint64(nil, uint64(k.meta.Log)), Newest: -1}
	if string(q.Members) != string(a.Revision) {
		a.Members = k.membership.list()
	}
	if q.Run != "" {
		if len(q.Run) > member.MaxName {
			return nil, refuse(ruleRequest, "the run's name has %d bytes", len(q.Run))
		}
		newest, err := k.newest(q.Run)
		if err != nil {
			return nil, err
		}
		a.Newest = newest
		directions := k.directions(q.Run)
		a.Directions = directions[:]
	}
	if q.Plan != "" {
		err := k.approved(q.Plan)
		if refused := (*Refusal)(nil); err != nil && !errors.As(err, &refused) {
			return nil, err
		}
		a.Approved = err == nil
	}
	a.Signature = member.Sign(k.identity, k.meta.Epoch, q, a)
	return a, nil
}

func (k *Keeper) checkFleet(fleet string) error {
	if fleet != k.options.Fleet {
		return refuse(ruleRequest, "this keeper is of fleet %q, not %.128q", k.options.Fleet, fleet)
	}
	return nil
}

// directions returns the seed of a run's random vectors. The seed is fixed for a run, because
// new vectors in each round would reveal more about the same client to the keeper. Agents must
// not learn the seed, because an agent that knows the vectors can send a long update that is
// orthogonal to them.
func (k *Keeper) directions(run string) (s mask.Seed) {
	h := hmac.New(sha256.New, k.ring.secret)
	h.Write([]byte("loadstar/v1/directions\x00" + run))
	h.Sum(s[:0])
	return s
}
