package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"loadstar/fed/mask"
	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// checked contains the values of a result that keepers check.
type checked struct {
	keepers    []string
	directions mask.Seed
	round      *v1.MaskedRound
	result     *v1.CheckedResult
	done       bool // accepted
}

// notAccepted means that a keeper has not accepted a result.
type notAccepted struct{ why string }

func (n *notAccepted) Error() string { return n.why }

// toCheck returns the values that a plan's keeper judges, or nil if the plan has no check or the
// hub asks the keeper.
// Computing the products takes most of the time of counting, so each call computes its own.
func (x *results) toCheck(ctx context.Context, t *terms.Terms, r *v1.Result, numbers []byte) (*checked, error) {
	if !t.Checks() || x.region {
		return nil, nil
	}
	c := &checked{keepers: t.Plan.Privacy.Keepers}
	var err error
	if c.directions, err = x.keepers.Directions(ctx, c.keepers, r.Run); err != nil {
		return nil, err
	}
	if c.round, err = x.maskedRound(ctx, t, r); err != nil {
		return nil, err
	}
	vector := make([]uint64, t.MaskedLen())
	if err := round.AddVector(vector, numbers); err != nil {
		return nil, err
	}
	c.result = &v1.CheckedResult{}
	for _, b := range c.round.Limits {
		p := c.directions.Products(vector[:b.Length])
		c.result.Products, vector = append(c.result.Products, p[:]...), vector[b.Length:]
	}
	return c, nil
}

// maskedRound returns the round for which results are masked.
func (x *results) maskedRound(ctx context.Context, t *terms.Terms, r *v1.Result) (*v1.MaskedRound, error) {
	v, err := x.history.version(ctx, r.Run, r.Version)
	if err != nil {
		return nil, err
	}
	q := &v1.Task{Run: r.Run, Round: r.Round, Version: r.Version, Weights: v.Weights, Control: v.Control}
	if q.Limits, err = terms.DecodeLimits(v.Limits); err != nil {
		return nil, err
	}
	if q.Privacy, err = x.history.privacy(ctx, t, ledger.Task{Turn: ledger.Turn{Run: r.Run, Round: r.Round}}); err != nil {
		return nil, err
	}
	return t.MaskedRound(q)
}

// judge asks keepers whether results may count.
type judge struct{ keepers *keepers.Set }

// all asks the keepers about the results of a round. It returns the results that may count, and
// those that wait for the keepers. The callers of all other results receive the reason.
func (j judge) all(ctx context.Context, all []*arrived) (accepted, again []*arrived) {
	var open []*arrived
	for _, a := range all {
		if a.check == nil || a.check.done {
			accepted = append(accepted, a)
		} else {
			open = append(open, a)
		}
	}
	for chunk := range slices.Chunk(open, keepers.MaxChecked) {
		yes, wait := j.some(ctx, chunk)
		accepted, again = append(accepted, yes...), append(again, wait...)
	}
	return accepted, again
}

// some asks the keepers in a single call. If they refuse the call because of one result, it
// asks about each half separately, so that one result does not prevent the others from being
// counted.
func (j judge) some(ctx context.Context, all []*arrived) (accepted, again []*arrived) {
	var results []*v1.CheckedResult
	for _, a := range all {
		m := &a.masks[0]                      // checkMembers ensures that there is exactly one
		nonce, _ := hex.DecodeString(m.Nonce) // never fails, because the nonce was encoded from bytes
		a.check.result.Result = &v1.MaskedResult{Agent: m.Agent, Part: m.Part, Clients: m.Clients, Nonce: nonce}
		results = append(results, a.check.result)
	}
	c := all[0].check
	verdicts, err := j.keepers.Check(ctx, c.keepers, c.directions, c.round, results)
	refused := (*keepers.Refused)(nil)
	switch {
	case errors.As(err, &refused) && refused.Waits():
		return nil, all
	case errors.As(err, &refused) && len(all) > 1:
		half := len(all) / 2
		accepted, again = j.some(ctx, all[:half])
		yes, wait := j.some(ctx, all[half:])
		return append(accepted, yes...), append(again, wait...)
	case errors.As(err, &refused):
		all[0].err = &notAccepted{refused.Error()}
		close(all[0].done)
		return nil, nil
	case err != nil:
		return nil, all
	}
	for i, a := range all {
		if a.check.done = verdicts[i]; a.check.done {
			accepted = append(accepted, a)
			continue
		}
		a.err = &notAccepted{fmt.Sprintf("the check of keeper %s refused the result: its update is longer than the limits of the round allow, or its mask does not match", strings.Join(c.keepers, " and "))}
		close(a.done)
	}
	return accepted, nil
}
