package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/product"
	"loadstar/server/terms"
)

// forger is a keeper whose answers the attack chooses. All its members have one key.
type forger struct {
	v1.UnimplementedKeeperServiceHandler
	identity ed25519.PrivateKey
	says     *v1.KeeperStatement
	key      mask.Key
	at       string

	mu       sync.Mutex
	lie      func(q *v1.KeeperReleaseRequest, honest *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse // nil: honest
	answered *v1.KeeperReleaseResponse                                                                    // the latest honest answer
}

func (f *Fleet) forger() (*forger, error) {
	public, identity, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	_, sealing, err := member.NewSealingKey()
	if err != nil {
		return nil, err
	}
	k := &forger{identity: identity, key: mask.NewKey(), says: &v1.KeeperStatement{
		Identity: public, Fleet: keptFleet, SealingKey: sealing, Number: 1, NotAfter: time.Now().Add(time.Hour).Unix(), Rules: &v1.KeeperRules{Least: 2, Cell: 100},
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k.at = l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle(v1.NewKeeperServiceHandler(k))
	s := &http.Server{Handler: mux}
	if s.TLSConfig, err = mtls.Pinned(identity, func([32]byte) bool { return true }); err != nil {
		return nil, err
	}
	f.later(s.Close)
	go func() { _ = s.ServeTLS(l, "", "") }() // until it is closed
	return k, nil
}

// State reports that every plan is approved.
func (k *forger) State(_ context.Context, q *v1.KeeperStateRequest) (*v1.KeeperStateResponse, error) {
	text, err := member.SignStatement(k.says, k.identity)
	if err != nil {
		return nil, err
	}
	a := &v1.KeeperStateResponse{Statement: &v1.SignedStatement{}, Approved: q.Plan != "", Newest: -1}
	if err := proto.Unmarshal(text, a.Statement); err != nil {
		return nil, err
	}
	a.Signature = member.Sign(k.identity, 1, q, a)
	return a, nil
}

// Release returns the sum of the masks, or the attack's falsification of it.
func (k *forger) Release(_ context.Context, q *v1.KeeperReleaseRequest) (*v1.KeeperReleaseResponse, error) {
	if err := member.CheckRound(q.Round); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.sum(q, q.Results)
	if k.lie != nil {
		return k.lie(q, a), nil
	}
	k.answered = proto.CloneOf(a)
	return a, nil
}

// sum returns the signed sum of the masks of some results.
func (k *forger) sum(q *v1.KeeperReleaseRequest, results []*v1.MaskedResult) *v1.KeeperReleaseResponse {
	sum := make([]uint64, q.Round.Length)
	c := member.Context(k.says, q.Round)
	for _, r := range results {
		member.Of(c, r)
		seed := k.key.Seed(c, mask.Nonce(r.Nonce))
		seed.Add(sum)
	}
	a := &v1.KeeperReleaseResponse{}
	for _, x := range sum {
		a.Masks = binary.LittleEndian.AppendUint64(a.Masks, x)
	}
	return k.signed(q, a)
}

func (k *forger) signed(q *v1.KeeperReleaseRequest, a *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
	a.Signature = nil
	a.Signature = member.Sign(k.identity, 1, q, a)
	return a
}

// lies makes the keeper answer with the given lie from now on, or honestly if it is nil.
func (k *forger) lies(lie func(*v1.KeeperReleaseRequest, *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lie = lie
}

// falseSum is a wrong answer of a keeper.
type falseSum struct {
	what, reason string
	// waits means that the server asks again and the round continues. Otherwise the server
	// abandons the round.
	waits bool
	lie   func(*v1.KeeperReleaseRequest, *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse
}

// falseSums returns the lies. The attack's keeper signs every lie except the one about the
// signature.
func (k *forger) falseSums() []falseSum {
	return []falseSum{
		{"noise", terms.ErrSum.Error(), false, func(q *v1.KeeperReleaseRequest, a *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
			_, _ = rand.Read(a.Masks) // never fails
			return k.signed(q, a)
		}},
		{"a sum without one result", terms.ErrSum.Error(), false, func(q *v1.KeeperReleaseRequest, _ *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
			return k.sum(q, q.Results[1:])
		}},
		{"one number too large by 2^62", terms.ErrSum.Error(), false, func(q *v1.KeeperReleaseRequest, a *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
			a.Masks[7] ^= 1 << 6
			return k.signed(q, a)
		}},
		{"a sum that is ten limits too long", terms.ErrSum.Error(), false, func(q *v1.KeeperReleaseRequest, a *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
			binary.LittleEndian.PutUint64(a.Masks, binary.LittleEndian.Uint64(a.Masks)-uint64(10*q.Round.Limits[0].Limit))
			return k.signed(q, a)
		}},
		{"numbers that were changed on their way", "the keeper's signature of its answer is wrong", true, func(_ *v1.KeeperReleaseRequest, a *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
			a.Masks[0]++
			return a
		}},
		{"the answer to an earlier round", "the keeper's signature of its answer is wrong", true, func(*v1.KeeperReleaseRequest, *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
			return proto.CloneOf(k.answered)
		}},
		{"half of the numbers", "bytes, want", true, func(q *v1.KeeperReleaseRequest, a *v1.KeeperReleaseResponse) *v1.KeeperReleaseResponse {
			a.Masks = a.Masks[:len(a.Masks)/2]
			return k.signed(q, a)
		}},
	}
}

// wrongSums succeeds if a sum with wrong masks changes the weights, or if the following round is
// not merged. With correct masks, every round must be merged.
func wrongSums(ctx context.Context, f *Fleet) (Result, error) {
	k := must(f.forger())
	c := f.serveKept(ctx, k.at, member.PinOf(k.says.Identity))
	for _, name := range []string{"a", "b", "c"} {
		m := c.joinClub(ctx, name, 1)
		m.key = k.key
	}
	lies := k.falseSums()
	run := must(c.privateRun(ctx, 2*len(lies)+1, "none"))
	number, version := int64(0), int64(0)
	honest := func() error {
		k.lies(nil)
		c.honestly(ctx, run, number)
		r, err := c.result(ctx, run, number)
		number, version = number+1, version+1
		if err == nil && r.Version != version {
			err = fmt.Errorf("a round with correct masks is not merged: %s", r.Reason)
		}
		return err
	}
	check(honest())
	for _, l := range lies {
		k.lies(l.lie)
		c.honestly(ctx, run, number)
		said, err := c.says(ctx, run, number, version, l)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", l.what, err)
		}
		if said.Version != version {
			return succeeded("%s: the round is merged", l.what), nil
		}
		if l.waits { // the keeper's correct answer ends the wait
			k.lies(nil)
			r, err := c.result(ctx, run, number)
			if err != nil || r.Version != version+1 {
				return Result{}, errors.Join(fmt.Errorf("%s: the round is not merged after the correct answer", l.what), err)
			}
			number, version = number+1, version+1
			continue
		}
		number++
		if err := honest(); err != nil {
			return Result{}, fmt.Errorf("after %s: %w", l.what, err)
		}
	}
	return repelled("%d wrong answers change no weights: the round is abandoned because its sum is impossible, or waits because the keeper's signature or length is wrong; rounds with right masks are merged", len(lies)), nil
}

// says waits until the run is past a round, or shows why it waits, and returns the run's state at
// that time. If the round is abandoned, the run's reason must contain l.reason.
func (c *club) says(ctx context.Context, run string, number, version int64, l falseSum) (*v1.Run, error) {
	var r *v1.GetRunResponse
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		var err error
		if r, err = c.look(ctx, run); err != nil {
			return false, err
		}
		return r.Run.Round > number || l.waits && strings.Contains(r.Run.Waits, l.reason), nil
	})
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("the run does not show the reason %q: %s %s", l.reason, r.GetRun().GetWaits(), r.GetRun().GetReason()), err)
	}
	if r.Run.Round > number && r.Run.Version == version && !strings.Contains(r.Run.Reason, l.reason) {
		return nil, fmt.Errorf("the round is abandoned for another reason: %s", r.Run.Reason)
	}
	return r.Run, nil
}
