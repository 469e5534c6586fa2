package terms

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"loadstar/fed"
	"loadstar/fed/exact"
	v1 "loadstar/proto/loadstar/v1"
)

// EncodeLimits encodes the limits of a version for the ledger. It returns nil if there are
// none.
func EncodeLimits(l fed.Limits) ([]byte, error) {
	if l == (fed.Limits{}) {
		return nil, nil
	}
	b, err := proto.Marshal(&v1.Limits{Norm: l.Norm, Control: l.Control, Examples: l.Examples, Loss: l.Loss, Coordinate: l.Coordinate})
	if err != nil {
		return nil, fmt.Errorf("encoding the limits of a version: %w", err)
	}
	return b, nil
}

// DecodeLimits decodes the result of EncodeLimits into the message that a task contains. It
// returns nil if there are no limits.
func DecodeLimits(b []byte) (*v1.Limits, error) {
	if len(b) == 0 {
		return nil, nil
	}
	l := &v1.Limits{}
	if err := proto.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("decoding the limits of a version: %w", err)
	}
	return l, nil
}

// LimitsOf returns the limits in a task.
func LimitsOf(l *v1.Limits) fed.Limits {
	return fed.Limits{Norm: l.GetNorm(), Control: l.GetControl(), Examples: l.GetExamples(), Loss: l.GetLoss(), Coordinate: l.GetCoordinate()}
}

// maxVersions is the number of versions whose limits are cached.
const maxVersions = 64

// Limits returns the limits of a version, which never change. It calls load for versions that
// are not in the cache.
func (t *Terms) Limits(version int64, load func() ([]byte, error)) (fed.Limits, error) {
	t.mu.Lock()
	l, ok := t.limits[version]
	t.mu.Unlock()
	if ok {
		return l, nil
	}
	b, err := load()
	if err != nil {
		return fed.Limits{}, err
	}
	wire, err := DecodeLimits(b)
	if err != nil {
		return fed.Limits{}, err
	}
	l = LimitsOf(wire)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limits == nil || len(t.limits) >= maxVersions {
		t.limits = map[int64]fed.Limits{}
	}
	t.limits[version] = l
	return l, nil
}

// limitSum returns an error if a sum, or one of its numbers, is larger than the limits and the
// claimed norms of its updates allow, given the updates' weights. It reduces claimed norms to
// the limits.
func (t *Terms) limitSum(r *Result, weights []int64, s *fed.Sums) error {
	const slack = 1 + 1e-9    // for the rounding of these additions
	var most, control float64 // norms of the longest possible sums
	for i := range r.Shares {
		x := &r.Shares[i]
		most += float64(weights[i]) * claimed(&x.Norm, r.Limits.Norm)
		control += claimed(&x.ControlNorm, r.Limits.Control) * float64(t.Rules.ControlWeight(weights[i]))
		if l := r.Limits.Loss; l > 0 {
			x.TrainLoss, x.Loss = min(x.TrainLoss, l), min(x.Loss, l)
		}
	}
	for _, part := range []struct {
		sum         *exact.Sum
		most, limit float64
		name        string
	}{{s.Delta, most, r.Limits.Norm, "updates"}, {s.Control, control, r.Limits.Control, "control variates"}} {
		if part.sum == nil || part.limit <= 0 {
			continue
		}
		if norm, rounding := part.sum.Norm(); !(norm <= part.most*slack+rounding) {
			return fmt.Errorf("the sum of %s has the norm %g, but its clients' limits and norms allow %g", part.name, norm, part.most)
		}
	}
	if bound := r.Limits.Coordinate; bound > 0 {
		allowed := float64(s.Delta.Weight()) * bound
		if largest, rounding := s.Delta.Largest(); !(largest <= allowed*slack+rounding) {
			return fmt.Errorf("a number of the sum of updates is %g, but its clients' limits allow %g", largest, allowed)
		}
	}
	return nil
}

// claimed reduces a client's claimed norm to the limit, and returns the largest norm that the
// client's update can have. If an older agent reports no norm, this is the limit.
func claimed(norm *float64, limit float64) float64 {
	if limit <= 0 {
		return 0
	}
	*norm = min(*norm, limit)
	if *norm == 0 {
		return limit
	}
	return *norm
}
