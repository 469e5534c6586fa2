// Package setup prepares a plan to run. The simulator, agents and the server all build a
// [Setup] from the plan, so they agree on shapes, on the scale of sums, on the weight of an
// update and on the initial weights.
package setup

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/limit"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/nn/kernel"
)

// Setup is a plan with its model and the parts of its algorithm, for one fleet. It never
// changes and contains no state of a run, so it is safe for concurrent use.
type Setup struct {
	Plan *fed.Plan
	// Fleet is the number of clients that train.
	Fleet   int
	Problem *recipe.Problem
	Parts   *recipe.Composition
	// Job contains the parts of the plan that are the same for all clients.
	Job client.Job
	// Rules determines how updates are summed.
	Rules round.Rules
	// start contains the shared weights of version 0, or is nil if they are random.
	start []float32
}

// From returns a setup that starts from the given shared weights. Personal weights start
// as usual.
func (s *Setup) From(shared []float32) *Setup {
	from := *s
	from.start = slices.Clone(shared)
	return &from
}

// New returns the setup of a plan and its problem for a fleet. [recipe.Compose] documents which
// clients count as the fleet.
func New(p *fed.Plan, problem *recipe.Problem, fleet int) (*Setup, error) {
	parts, err := recipe.Compose(p, fleet)
	if err != nil {
		return nil, err
	}
	if problem.Partition.SharedLen() == 0 && parts.Federated {
		return nil, fmt.Errorf("partition %s shares no layers, which %s needs", p.Partition, p.Algorithm)
	}
	return &Setup{
		Plan: p, Fleet: fleet, Problem: problem, Parts: parts,
		Job: client.Job{
			Seed: p.Seed, Draws: fed.Seeded(p.Seed), Model: problem.Model, Partition: problem.Partition, Loss: problem.Loss,
			Targets: problem.PerExample(), Batch: p.Client.Batch, Needs: parts.Needs,
			Averaged: recipe.Averaged(p), Noise: p.Client.WeightDecay.Correction > 0,
			Own: recipe.StoresOwn(p), ScoreOwn: recipe.ScoresOwn(p), Copy: copyOf(p),
		},
		Rules: round.Rules{
			Needs: parts.Needs, Scale: parts.Scale, Control: parts.Control, Weight: parts.Weight, WeightControl: parts.WeightControl,
			ByExamples: p.Server.Weighting == "examples", Tallied: p.Server.Clip > 0, Coarse: recipe.Private(p),
		},
	}, nil
}

// OfAgent returns the setup of an agent with the given secret, which determines the selection
// of its clients' examples. The numbers that an agent sends with an update are rounded.
func (s *Setup) OfAgent(secret [32]byte) (*Setup, error) {
	// The draws depend on all parts of the plan that affect training and scoring. They do not
	// depend on the schedule, because the server determines the deadline itself. The inputs and
	// the interval are those that the server has determined.
	plan := *s.Plan
	plan.Schedule, plan.Simulate = fed.Schedule{}, fed.Simulate{}
	plan.Model.Inputs, plan.Model.Interval = s.Problem.Names(), fed.Duration(s.Problem.Interval())
	resolved, err := recipe.Stated(&plan)
	if err != nil {
		return nil, err
	}
	settings, err := recipe.Write(resolved)
	if err != nil {
		return nil, err
	}
	own := *s
	own.Job.Draws, own.Job.Coarse = &fed.Secret{Key: secret, Plan: sha256.Sum256(settings)}, true
	return &own, nil
}

// copyOf returns the rule by which a client's copy of the shared weights moves, or nil if
// clients have no copies.
func copyOf(p *fed.Plan) *client.Copy {
	if !recipe.ClientStates(p) {
		return nil
	}
	return &client.Copy{Rate: p.Server.Rate, Beta1: p.Server.Beta1, Epsilon: p.Server.Epsilon}
}

// InitialWeights returns the shared vector and the personal weights of version 0.
func (s *Setup) InitialWeights() (shared, personal []float32) {
	p := s.Problem.Partition
	shared, personal = make([]float32, s.Problem.SharedLen()), make([]float32, p.PersonalLen())
	p.Cut(s.Problem.Model.InitialWeights(s.Plan.Seed), s.Problem.SharedWeights(shared), personal)
	copy(shared, s.start)
	return shared, personal
}

// InitialKept returns a client's stored state before its first turn: its personal
// weights, and zeros for the trainer.
func (s *Setup) InitialKept(w *client.Worker) []float32 {
	kept := make([]float32, w.Kept())
	_, personal := s.InitialWeights()
	copy(kept, personal)
	return kept
}

// NewServer returns a server with the initial shared weights, at version 0.
func (s *Setup) NewServer() *round.Server {
	shared, _ := s.InitialWeights()
	server := round.NewServer(s.Parts.NewAggregator(), s.Parts.NewOptimizer(), s.Fleet, shared)
	if clip := s.Plan.Server.Clip; clip > 0 {
		server.Limit(clip, recipe.FirstLimits(s.Plan, limit.Norm(shared)), recipe.CoordinateLimit(s.Plan))
	}
	if s.Plan.Server.Decay == "linear" {
		server.Decay(s.Plan.Rounds)
	}
	return server
}

// NewMachine returns a machine that opens the first round.
func (s *Setup) NewMachine() *round.Machine {
	return round.NewMachine(s.Parts.Scheduler, s.Plan.Seed, s.Fleet)
}

// NewWorker returns a worker that trains clients with the plan's trainer.
func (s *Setup) NewWorker(k *kernel.Set) *client.Worker {
	return client.NewWorker(&s.Job, k, s.Parts.NewTrainer(k))
}

// NewTuner returns a tuner that determines the final weights of clients, or nil if these
// are the weights of the last round.
func (s *Setup) NewTuner(k *kernel.Set) *client.Tuner {
	choose := s.Plan.Evaluate.FineTune.Choose == "validation"
	if s.Parts.NewTuner == nil && !choose {
		return nil
	}
	var trainer fed.LocalTrainer
	if s.Parts.NewTuner != nil {
		trainer = s.Parts.NewTuner(k)
	}
	return client.NewTuner(&s.Job, k, trainer, choose)
}

// KeepsBest reports whether the simulator keeps each client's best weights.
func (s *Setup) KeepsBest() bool { return s.Plan.Evaluate.Keep == "best" }

// Traffic returns the network traffic of one client in one round. A masked result contains
// eight bytes per number, and includes all other data that the agent sends.
func (s *Setup) Traffic() recipe.Traffic {
	if !s.Parts.Federated {
		return recipe.Traffic{}
	}
	t := recipe.TrafficOf(s.Problem, s.Parts.Needs)
	if recipe.Private(s.Plan) {
		t.Up = 8 * int64(s.Rules.Vector(s.Problem.SharedLen()).Len())
	}
	return t
}
