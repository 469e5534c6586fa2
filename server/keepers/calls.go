package keepers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// Masks returns the sum, over all keepers, of the masks of a round's results. If the keepers
// choose the results that count, chosen contains the indices of these results in the request.
// The request is an encoded v1.KeeperReleaseRequest. A repeated call must pass the same
// request. While a keeper does not answer, or may still allow the request, Masks waits and
// calls waits with the reason. When the keeper answers, Masks calls waits with nil. A [Refused]
// error is final.
func (s *Set) Masks(ctx context.Context, names []string, request []byte, waits func(error)) (sum []uint64, chosen []int64, err error) {
	q := &v1.KeeperReleaseRequest{}
	if err := proto.Unmarshal(request, q); err != nil {
		return nil, nil, fmt.Errorf("decoding the request to keepers: %w", err)
	}
	decides, others, err := s.roles(names)
	if err != nil {
		return nil, nil, err
	}
	sum = make([]uint64, q.Round.Length)
	for _, k := range append([]*keeper{decides}, others...) {
		a, err := k.release(ctx, q, waits)
		if err != nil {
			return nil, nil, err
		}
		for j := range sum {
			sum[j] += binary.LittleEndian.Uint64(a.Masks[8*j:])
		}
		if len(a.Chosen) == 0 {
			continue
		}
		if k != decides || chosen != nil {
			return nil, nil, &Refused{k.Name, "chosen", "it chooses among results that were chosen"}
		}
		chosen = a.Chosen
		all := q.Results
		q = &v1.KeeperReleaseRequest{Round: q.Round}
		for i, at := range chosen {
			if at < 0 || at >= int64(len(all)) || i > 0 && chosen[i-1] >= at {
				return nil, nil, &Refused{k.Name, "chosen", "it chooses results that do not exist"}
			}
			q.Results = append(q.Results, all[at])
		}
	}
	return sum, chosen, nil
}

// roles returns the keeper that decides which results count, and the other keepers. The
// deciding keeper is the one with the greatest identity.
func (s *Set) roles(names []string) (decides *keeper, others []*keeper, err error) {
	all, err := s.find(names)
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(all, func(a, b *keeper) int { return slices.Compare(a.Identity[:], b.Identity[:]) })
	return all[len(all)-1], all[:len(all)-1], nil
}

// release repeats a request until the keeper releases the masks or refuses permanently.
func (k *keeper) release(ctx context.Context, q *v1.KeeperReleaseRequest, waits func(error)) (*v1.KeeperReleaseResponse, error) {
	retry := k.retry(fmt.Sprint("release ", q.Round.Round))
	for {
		var a *v1.KeeperReleaseResponse
		err := k.call(ctx, "release", answerWithin, func(ctx context.Context) (epoch int64, err error) {
			if a, err = k.client.Release(ctx, q); err != nil {
				return 0, err
			}
			if int64(len(a.Masks)) != 8*q.Round.Length {
				return 0, fmt.Errorf("it answered with %d bytes, want %d", len(a.Masks), 8*q.Round.Length)
			}
			return k.verify(q, a)
		})
		if err == nil {
			waits(nil)
			return a, nil
		}
		var refused *Refused
		if errors.As(err, &refused) && !refused.Waits() || ctx.Err() != nil {
			return nil, err
		}
		waits(err)
		if err := retry.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// enrolWithin is the time limit for passing an enrolment to a keeper, for which an agent's call
// waits. SealedBytes is the maximum size of an enrolment's sealed message.
const (
	enrolWithin = 5 * time.Second
	SealedBytes = 4 << 10
)

// Enrol passes an agent's enrolment to its keeper and returns the receipt. The receipt is nil
// if the keeper does not answer; the agent then repeats the enrolment.
func (s *Set) Enrol(ctx context.Context, agent string, e *v1.Enrolment) *v1.Receipt {
	if s == nil || len(e.GetSealed()) > SealedBytes {
		return nil
	}
	for _, k := range s.all {
		if !slices.Equal(k.Identity[:], e.GetKeeper()) {
			continue
		}
		fleet := k.fleet()
		if fleet == "" {
			return nil // it has not answered yet, so its rules are unknown
		}
		q := &v1.KeeperEnrolRequest{Fleet: fleet, Enrolments: []*v1.KeeperEnrolment{{Agent: agent, Sealed: e.Sealed}}}
		var receipt *v1.Receipt
		err := k.call(ctx, "enrol", enrolWithin, func(ctx context.Context) (int64, error) {
			a, err := k.client.Enrol(ctx, q)
			if err != nil {
				return 0, err
			}
			if len(a.Receipts) != 1 {
				return 0, fmt.Errorf("it answered %d of 1 enrolments", len(a.Receipts))
			}
			receipt = a.Receipts[0]
			return k.verify(q, a)
		})
		if err != nil {
			return nil
		}
		return receipt
	}
	return nil
}

// Uninvited reports whether a keeper accepts members without invitations.
func (s *Set) Uninvited(identity []byte) bool {
	if s == nil {
		return false
	}
	i := slices.IndexFunc(s.all, func(k *keeper) bool { return slices.Equal(k.Identity[:], identity) })
	if i < 0 {
		return false
	}
	k := s.all[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.says != nil && !k.says.GetRules().GetInvited()
}

func (k *keeper) fleet() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.says.GetFleet()
}

// MaxChecked is the maximum number of results in a call of Check.
const MaxChecked = member.MaxChecked

// Directions returns the seed of the random vectors with which keepers check the results of a run.
// Agents must not learn this seed.
func (s *Set) Directions(ctx context.Context, names []string, run string) (seed mask.Seed, err error) {
	k, _, err := s.roles(names)
	if err != nil {
		return seed, err
	}
	k.mu.Lock()
	seed, known := k.directions[run]
	k.mu.Unlock()
	if known {
		return seed, nil
	}
	if err := k.away(); err != nil {
		return seed, err
	}
	k.mu.Lock()
	q := &v1.KeeperStateRequest{Run: run, Members: k.revision}
	k.mu.Unlock()
	err = k.call(ctx, "state", stateWithin, func(ctx context.Context) (int64, error) {
		a, err := k.client.State(ctx, q)
		if err != nil {
			return 0, err
		}
		epoch, err := k.read(q, a)
		if err == nil && len(a.Directions) != len(seed) {
			err = fmt.Errorf("its directions have %d bytes, want %d", len(a.Directions), len(seed))
		}
		if err == nil {
			seed = mask.Seed(a.Directions)
		}
		return epoch, err
	})
	if err != nil {
		return seed, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.directions == nil || len(k.directions) >= maxDirections {
		k.directions = map[string]mask.Seed{}
	}
	k.directions[run] = seed
	return seed, nil
}

// Newest returns the newest round of a run that any of the keepers has released, or -1 if there
// is none.
func (s *Set) Newest(ctx context.Context, names []string, run string) (newest int64, err error) {
	these, err := s.find(names)
	if err != nil {
		return 0, err
	}
	newest = -1
	for _, k := range these {
		k.mu.Lock()
		q := &v1.KeeperStateRequest{Run: run, Members: k.revision}
		k.mu.Unlock()
		err := k.call(ctx, "state", stateWithin, func(ctx context.Context) (int64, error) {
			a, err := k.client.State(ctx, q)
			if err != nil {
				return 0, err
			}
			newest = max(newest, a.Newest)
			return k.read(q, a)
		})
		if err != nil {
			return 0, err
		}
	}
	return newest, nil
}

// maxDirections is the maximum number of runs for which the seed of the random vectors is in
// memory.
const maxDirections = 64

// away returns an error if the keeper did not answer the last call.
func (k *keeper) away() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.silent.IsZero() {
		return nil
	}
	return &Away{k.Name, k.silent, k.why}
}

// Check reports, for each of several results, whether the keepers accept it. directions is the
// seed of the run's random vectors. One after the other, the keepers subtract the products of
// their masks, and the last one decides. If a keeper did not answer the last call, Check
// returns [Away] at once, so that results of other runs do not wait.
func (s *Set) Check(ctx context.Context, names []string, directions mask.Seed, in *v1.MaskedRound, results []*v1.CheckedResult) (accepted []bool, err error) {
	decides, others, err := s.roles(names)
	if err != nil {
		return nil, err
	}
	for _, k := range append(others, decides) {
		if err := k.away(); err != nil {
			return nil, err
		}
	}
	for _, k := range others {
		a, err := k.check(ctx, &v1.KeeperCheckRequest{Round: in, Results: results, Directions: directions[:]})
		if err != nil {
			return nil, err
		}
		left, reduced := a.Products, make([]*v1.CheckedResult, len(results))
		for i, r := range results {
			n := len(r.Products)
			if len(left) < n {
				return nil, &Refused{k.Name, "products", "it left out some results"}
			}
			reduced[i], left = &v1.CheckedResult{Result: r.Result, Products: left[:n]}, left[n:]
		}
		results = reduced
	}
	a, err := decides.check(ctx, &v1.KeeperCheckRequest{Round: in, Results: results})
	if err == nil && len(a.Accepted) != len(results) {
		err = &Refused{decides.Name, "results", "it did not judge all results"}
	}
	return a.GetAccepted(), err
}

func (k *keeper) check(ctx context.Context, q *v1.KeeperCheckRequest) (a *v1.KeeperCheckResponse, err error) {
	err = k.call(ctx, "check", checkWithin, func(ctx context.Context) (epoch int64, err error) {
		if a, err = k.client.Check(ctx, q); err != nil {
			return 0, err
		}
		return k.verify(q, a)
	})
	return a, err
}

// checkWithin is the time limit of a check. It is shorter than the time for which a result may
// wait to be counted.
const checkWithin = 10 * time.Second
