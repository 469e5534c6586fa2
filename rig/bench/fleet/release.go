package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/proc"
	"loadstar/keeper"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/bench"
	"loadstar/server/terms"
)

// keeperCosts returns the CPU time in seconds of releases with the given numbers of results, for
// a keeper without a network.
func keeperCosts(ctx context.Context, t *terms.Terms, members []int, progress bench.Progress) (costs []float64, err error) {
	dir, err := os.MkdirTemp("", "loadstar-keeper-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	pin, err := keeper.Create(dir)
	if err != nil {
		return nil, err
	}
	k, err := keeper.Open(dir, keeperOptions())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	statement, err := enrolMembers(ctx, k, pin, slices.Max(members), progress)
	if err != nil {
		return nil, err
	}
	const repeats = 3
	number := int64(0)
	for _, n := range members {
		var took []float64
		for range repeats {
			task := &v1.Task{Run: "run", Round: number, Weights: "weights", Privacy: &v1.Privacy{Statements: [][]byte{statement}, Day: mask.Day(time.Now())}}
			number++
			q := &v1.KeeperReleaseRequest{}
			if q.Round, err = t.MaskedRound(task); err != nil {
				return nil, err
			}
			q.Round.Plan = "plan"
			for i := range n {
				nonce := mask.NewNonce()
				q.Results = append(q.Results, &v1.MaskedResult{Agent: virtualClient(i), Clients: 1, Nonce: nonce[:]})
			}
			begun := proc.CPUTime()
			if _, err := k.Release(q); err != nil {
				return nil, fmt.Errorf("release a round of %d results: %w", n, err)
			}
			took = append(took, (proc.CPUTime() - begun).Seconds())
		}
		costs = append(costs, bench.Median(took))
	}
	return costs, nil
}

// enrolMembers enrols members with a keeper, and returns its statement.
func enrolMembers(ctx context.Context, k *keeper.Keeper, pin member.Pin, members int, progress bench.Progress) ([]byte, error) {
	state, err := k.State(&v1.KeeperStateRequest{})
	if err != nil {
		return nil, err
	}
	statement, err := proto.Marshal(state.Statement)
	if err != nil {
		return nil, err
	}
	s, err := member.ReadStatement(statement)
	if err != nil {
		return nil, err
	}
	for at := 0; at < members; at += member.MaxEnrolled {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		progress(at, members, ", enrolling")
		q := &v1.KeeperEnrolRequest{Fleet: benchFleet}
		for i := at; i < min(at+member.MaxEnrolled, members); i++ {
			key := mask.NewKey()
			sealed, err := member.Seal(s, virtualClient(i), &key, mask.Day(time.Now()), member.Code{})
			if err != nil {
				return nil, err
			}
			q.Enrolments = append(q.Enrolments, &v1.KeeperEnrolment{Agent: virtualClient(i), Sealed: sealed})
		}
		a, err := k.Enrol(q)
		if err != nil {
			return nil, err
		}
		for _, r := range a.Receipts {
			if r.Refused != "" {
				return nil, fmt.Errorf("keeper %s refused an enrolment: %s", pin, r.Refused)
			}
		}
	}
	return statement, nil
}
