package agent

import (
	"context"
	"math"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/policy"
	"loadstar/fed/setup"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Probe computes what an agent sends for its clients, without a server or a store. Tests use it
// for attacks. It does not limit rounds and plans, and initializes a client's personal layers
// in every turn.
type Probe struct{ session *session }

// NewProbe opens a plan as an agent does. The error states why an agent would decline the plan.
func NewProbe(plan []byte, fleet int64, d *series.Dataset, k *kernel.Set, allow *policy.Policy, secret [32]byte) (*Probe, error) {
	const memory = 1 << 30
	s, err := newSession(plan, fleet, d, k, 1, memory, allow, secret)
	if err != nil {
		return nil, err
	}
	return &Probe{s}, nil
}

// Setup returns the plan as the agent trains it.
func (p *Probe) Setup() *setup.Setup { return p.session.Setup }

// Train returns the update that an agent sends after a client's turn.
func (p *Probe) Train(ctx context.Context, m series.Meter, t fed.Task) (*fed.Update, error) {
	s := p.session
	data := s.Problem.Examples(m, s.Problem.Framer.Ranges(m))
	if reason := s.policy.CheckClient(s.Plan, data.Len(series.Train)); reason != "" {
		return nil, unfitOf(codePolicy, "%s", reason)
	}
	w := s.workers[0]
	copy(w.kept, s.initial)
	c := client.Client{ID: fed.ClientID(m.ID), Data: []series.Examples{data}, Kept: w.kept, First: true}
	var u fed.Update
	err := w.Train(ctx, &c, t, &u)
	return &u, err
}

// Score returns the relative MAE that an agent reports for a task's weights. ok is false if
// it reports none.
func (p *Probe) Score(m series.Meter, t fed.Task) (relative float64, ok bool) {
	s := p.session
	e := s.evaluate(t, m, s.Problem.Examples(m, s.Problem.Framer.Ranges(m)), s.initial, true)
	if e == nil {
		return math.NaN(), false
	}
	return float64(e.RelativeMae) / 1e6, true
}
