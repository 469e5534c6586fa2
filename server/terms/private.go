package terms

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"loadstar/fed"
	"loadstar/fed/member"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
)

// ErrSum means that the clients of a private round cannot have produced the sum of their results.
var ErrSum = errors.New("the sum of the results is impossible; an agent has sent numbers that are too large or masked them for another task, or a keeper has sent wrong masks")

// Private reports whether agents mask their results.
func (t *Terms) Private() bool { return recipe.Private(t.Plan) }

// Checks reports whether a keeper checks the norm of each result before the result counts.
func (t *Terms) Checks() bool { return recipe.ChecksNorms(t.Plan) }

// Chooses reports whether the keepers choose which results count. In that case masked results
// are stored individually.
func (t *Terms) Chooses() bool { return recipe.ChoosesNearest(t.Plan) }

// mostStored limits the total size of masked results that are stored individually.
const mostStored = 2 << 30

// checkStored returns an error if a round would store too many bytes.
func (t *Terms) checkStored() error {
	if n := int64(t.Plan.Schedule.Cohort) * t.MaskedBytes(); t.Chooses() && n > mostStored {
		return fmt.Errorf("server.robust is nearest, which stores each masked result; these are %d MB in a round, but the limit is %d MB; choose a smaller schedule.cohort or none", n>>20, mostStored>>20)
	}
	return nil
}

// MaskedLen returns the number of integers in a masked result.
func (t *Terms) MaskedLen() int { return t.Rules.Vector(t.Shared).Len() }

// MaskedBytes returns the size of a masked result in bytes.
func (t *Terms) MaskedBytes() int64 { return 8 * int64(t.MaskedLen()) }

// mostLimits is the maximum norm of an unmasked sum, relative to the total of its clients'
// limits. Keepers apply the same factor to a single result, so a member whose result was
// accepted cannot alone cause its round to be abandoned.
const mostLimits = 1.5

// Unmasked decodes the sum of a private round after the masks are removed. The error wraps
// ErrSum if clients cannot have produced this sum within the limits, in particular if it still
// contains a mask.
func (t *Terms) Unmasked(version, clients int64, l fed.Limits, sum []uint64) (*round.Fold, *round.Sizes, error) {
	v := t.Rules.Vector(t.Shared)
	f, s, err := v.Decode(int(version), clients, sum)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSum, err)
	}
	for _, b := range v.Blocks(l) {
		var squares float64
		for _, n := range sum[:b.Length] {
			x := float64(int64(n))
			squares += float64(x * x)
		}
		if most := mostLimits * float64(b.Limit) * float64(clients); b.Limit > 0 && !(math.Sqrt(squares) <= most) {
			return nil, nil, fmt.Errorf("%w: its norm is %.3g times the limits of its clients, more than %g", ErrSum, math.Sqrt(squares)/most*mostLimits, mostLimits)
		}
		sum = sum[b.Length:]
	}
	return f, s, nil
}

// MaskedRound returns the round for which agents mask the results of a task.
func (t *Terms) MaskedRound(q *v1.Task) (*v1.MaskedRound, error) {
	r := &v1.MaskedRound{
		Run: q.Run, Round: q.Round, Version: q.Version, Plan: t.Blob, Weights: q.Weights, Control: q.Control,
		Length: int64(t.MaskedLen()), Day: q.Privacy.GetDay(), Homes: int64(t.Fleet), Clip: q.Limits, Limits: member.Limits(t.Rules.Vector(t.Shared).Blocks(LimitsOf(q.Limits))),
	}
	var pins []member.Pin
	for _, text := range q.Privacy.GetStatements() {
		s, err := member.ReadStatement(text)
		if err != nil {
			return nil, err
		}
		r.Fleet = s.Fleet // the same for all results
		pins = append(pins, member.PinOf(s.Identity))
	}
	r.Terms = member.PlanTerms(t.Plan, pins)
	return r, nil
}

// checkMasked returns an error if a masked result reveals more than necessary.
func checkMasked(r *Result) error {
	names := make([]string, len(r.Shares))
	for i, s := range r.Shares {
		if s != (Share{Client: s.Client}) {
			return fmt.Errorf("the masked result contains more than the name of client %s", s.Client)
		}
		names[i] = s.Client
	}
	slices.Sort(names)
	if len(slices.Compact(names)) < len(r.Shares) {
		return errors.New("the masked result has the same client twice")
	}
	return nil
}
