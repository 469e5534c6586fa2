package agent

import (
	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/series"
)

// scaled describes how a session scales a client's readings in a run. Weights are useful only
// with the scaling with which they were trained, and the readings grow. So the agent stores the
// scaling with the first counted result and uses it in all later rounds of the run.
type scaled struct {
	// frozen is the stored scaling, or nil if the session's readings define the scaling.
	frozen *recipe.Scaling
	ranges series.Ranges // ranges of the session's readings, unless frozen is set
	stored bool          // the store has the scaling
}

// scaling returns the description of a client's scaling in a run.
func (a *agent) scaling(s *session, run, client string, m series.Meter) (*scaled, error) {
	key := run + "\x00" + client
	s.mu.Lock()
	k := s.scalings[key]
	s.mu.Unlock()
	if k != nil && k.stored {
		return k, nil
	}
	b, err := a.store.Scaling(run, client)
	if err != nil {
		return nil, err
	}
	if k != nil {
		k.stored = b != nil // if the scaling is stored, an earlier round of this session stored it from the same readings
		return k, nil
	}
	k = &scaled{stored: b != nil}
	if b != nil {
		x, err := serve.DecodeScaling(b)
		if err != nil {
			return nil, err
		}
		k.frozen = &x
	} else {
		k.ranges = s.Problem.Framer.Ranges(m)
	}
	s.mu.Lock()
	s.scalings[key] = k
	s.mu.Unlock()
	return k, nil
}

// examples returns the examples of a meter. It does not pass the scaling of the
// session's own readings as frozen, because their features would be cached twice.
func (k *scaled) examples(q *recipe.Problem, m series.Meter) series.Examples {
	if k.frozen != nil {
		return q.Frozen(m, *k.frozen)
	}
	return q.Examples(m, k.ranges)
}

// encode returns the scaling for the store, or nil if the store already has it.
func (k *scaled) encode(q *recipe.Problem, m series.Meter) []byte {
	if k.stored {
		return nil
	}
	return serve.EncodeScaling(q.Scaling(m, k.ranges))
}
