package agent

import (
	"errors"
	"slices"

	"loadstar/agent/state"
	"loadstar/nn"
)

// accept returns an [unfit] error if the policy forbids training with a job's weights,
// because honest training cannot have produced them from the weights that this agent accepted
// before. If keep is set, accept adds them to the accepted weights.
//
// This check stops a server that sends chosen weights in one round. It does not stop a
// server that moves the weights slowly, because slow changes look like training.
func (a *agent) accept(s *session, j *job, weights []float32, keep bool) error {
	if a.Policy.MostStep == 0 {
		return nil
	}
	chain, found, err := a.store.Chain(j.GetRun())
	switch {
	case errors.Is(err, state.ErrDamaged):
		a.Log.Error("cannot read the weights that this agent accepted before, and compares with version 0", "run", j.GetRun(), "error", err)
	case err != nil:
		return storeError(err)
	}
	reason := ""
	if a.heads.active() {
		if reason, err = a.heads.check(j, chain.Trail, keep); err != nil {
			return err
		}
	}
	if reason == "" {
		reason = s.checkWeights(chain, found, j, weights)
	}
	if reason != "" {
		a.Log.Warn("declined the weights of a run", "run", j.GetRun(), "version", j.GetVersion(), "weights", j.GetWeights(), "reason", reason)
		return unfitOf(codePolicy, "%s", reason)
	}
	if !keep {
		return nil
	}
	if err := a.store.Accept(j.GetRun(), j.GetVersion(), j.GetWeights(), weights); err != nil {
		return storeError(err)
	}
	return nil
}

// checkWeights returns the reason to decline weights, or an empty string.
func (s *session) checkWeights(chain state.Chain, found bool, j *job, weights []float32) string {
	if slices.Contains(chain.Hashes, j.GetWeights()) {
		return "" // an operator may return to an earlier version
	}
	initial, _ := s.InitialWeights()
	if !found || len(chain.Weights) != len(weights) {
		chain = state.Chain{Weights: initial}
	}
	version := j.GetVersion()
	switch {
	case version == 0:
		if reason := s.policy.CheckStart(initial, weights); reason != "" {
			return reason
		}
	case found && version == chain.Version:
		return "the weights of this version are not those that this agent has seen before (policy.most_step)"
	default:
		if reason := s.policy.CheckStep(s.Plan, int(chain.Version), chain.Weights, int(version), weights); reason != "" {
			return reason
		}
	}
	at := 0
	for _, layer := range s.Problem.Partition.Shared() {
		if layer.Kind == nn.KindPReLU {
			if reason := s.policy.CheckSlopes(layer.Name, weights[at:at+layer.Len()]); reason != "" {
				return reason
			}
		}
		at += layer.Len()
	}
	return ""
}
