package recipe

import (
	"errors"
	"fmt"

	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/clientopt"
	"loadstar/fed/exact"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

// Composition contains the constructors and numbers of a plan's algorithm, for a given
// fleet size. It has no state, so all runs and workers can use the same Composition and
// create their own parts with it.
type Composition struct {
	// Federated reports whether clients send updates to a server.
	Federated bool
	// Needs lists the aggregator's requirements.
	Needs fed.Needs
	// NewAggregator and NewOptimizer return the aggregator and the optimizer of a new
	// server.
	NewAggregator func() fed.Aggregator
	NewOptimizer  func() fed.ServerOptimizer
	Scheduler     fed.Scheduler
	// Turns is the number of updates counted in a round if all clients return.
	Turns int
	// Scale is the scale for sums of updates, and Control the scale for sums of control
	// variates.
	Scale, Control exact.Scale
	// Weight returns the weight of an update, given its number of examples. WeightControl means
	// that the update's control variate has the same weight; otherwise, its weight is 1.
	Weight        func(examples int) int64
	WeightControl bool
	// NewTrainer returns a trainer for one worker.
	NewTrainer func(k *kernel.Set) fed.LocalTrainer
	// NewTuner returns a trainer for one worker that fine-tunes clients before they are
	// scored at the end of a run. It is nil if the plan does not fine-tune.
	NewTuner func(k *kernel.Set) fed.LocalTrainer
	// ServerState is the number of float64 vectors that the aggregator and the optimizer store
	// once every client has been counted. Each vector is as long as the shared weights.
	ServerState int
}

// controlBound is the largest permitted number in a control variate. It is far above any
// gradient in training that converges. weightedControlBound is lower, because weights by
// examples use some bits of the sums, which would otherwise lose resolution.
const (
	controlBound         = 1 << 20
	weightedControlBound = 1 << 12
)

// Compose builds the parts of a plan. The fleet is the number of clients that train. It
// excludes held-out clients and clients whose data is on the server. If the plan pools all
// readings, the fleet is 1.
func Compose(p *fed.Plan, fleet int) (*Composition, error) {
	a := find(p.Algorithm)
	if a == nil {
		return nil, fmt.Errorf("algorithm %q is not known", p.Algorithm)
	}
	if wrong := validateSettings(a, p); len(wrong) > 0 {
		return nil, fmt.Errorf("%s", wrong[0].text)
	}
	if fleet < 1 {
		return nil, fmt.Errorf("no clients are left to train: the fleet is empty, or all its clients are held out")
	}
	s := &p.Schedule
	if s.Cohort > fleet {
		return nil, fmt.Errorf("schedule.cohort is %d, but only %d clients train", s.Cohort, fleet)
	}
	if s.Kind == "buffered" && s.Buffer > fleet {
		return nil, fmt.Errorf("schedule.buffer is %d, but only %d clients train, and a merge includes at most one update of each client", s.Buffer, fleet)
	}
	scheduled := newScheduler(p, fleet)
	if err := errors.Join(checkTrimmed(p, scheduled.turns), checkPrivate(p, scheduled.turns)); err != nil {
		return nil, err
	}
	c := &Composition{
		Federated:     !a.noServer,
		Needs:         a.newAggregator(p).Needs(),
		NewAggregator: func() fed.Aggregator { return a.newAggregator(p) },
		NewOptimizer:  func() fed.ServerOptimizer { return newServerOptimizer(p) },
		Scheduler:     scheduled.Scheduler,
		Turns:         scheduled.turns,
		Weight:        func(int) int64 { return 1 },
		NewTrainer:    func(k *kernel.Set) fed.LocalTrainer { return a.newTrainer(p, k) },
		ServerState:   a.serverState.total + fleet*a.serverState.perClient,
	}
	if o := findServerOptimizer(p.Server.Optimizer); o != nil {
		c.ServerState += o.state
	}
	if p.Evaluate.FineTune.Steps > 0 || p.Evaluate.FineTune.Epochs > 0 {
		c.NewTuner = func(k *kernel.Set) fed.LocalTrainer { return newTuner(p, k) }
	}
	bound := p.Server.Bound
	if a.noServer {
		bound = 1 << 10 // the plan has no server.bound, because nothing is sent
	}
	most := maxWeight(p)
	if p.Server.Weighting == "examples" {
		c.Weight = func(examples int) int64 { return min(int64(examples), most) }
	}
	var err error
	if c.Scale, err = exact.NewScale(bound, most, int64(scheduled.most)); err != nil {
		return nil, err
	}
	if c.Needs.Control { // control variates are gradients
		bound, most := float64(controlBound), int64(1)
		if c.WeightControl = p.Server.Weighting == "examples"; c.WeightControl {
			bound, most = weightedControlBound, maxWeight(p)
		}
		if c.Control, err = exact.NewScale(bound, most, int64(scheduled.most)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (a *algorithm) newAggregator(p *fed.Plan) fed.Aggregator {
	switch {
	case a.aggregator != nil:
		return a.aggregator(p)
	case Trims(p):
		return aggregate.Trimmed{}
	}
	return aggregate.Mean{}
}

func (a *algorithm) newTrainer(p *fed.Plan, k *kernel.Set) fed.LocalTrainer {
	work := workOf(p)
	optimizer := a.newClientOptimizer(p, k)
	if a.trainer == nil {
		return &localtrain.Descent{Work: work, Optimizer: optimizer}
	}
	return a.trainer(p, k, work, optimizer)
}

func workOf(p *fed.Plan) localtrain.Work {
	c := &p.Client
	return localtrain.Work{Batch: c.Batch, Steps: c.Steps, Epochs: c.Epochs, ResampleRound: c.Resample == "round"}
}

func (a *algorithm) newClientOptimizer(p *fed.Plan, k *kernel.Set) fed.ClientOptimizer {
	c, rate := &p.Client, rateOf(p)
	if a.clientOptimizer != nil {
		return withDecay(c, k, rate, a.clientOptimizer(k, rate))
	}
	entry := findClientOptimizer(c.Optimizer)
	o := entry.build(c, k, rate)
	if entry.proximal {
		o = &clientopt.Prox{Kernel: k, Mu: c.Mu, Inner: o}
	}
	return withDecay(c, k, rate, o)
}

// rateOf returns the learning rate of a plan's clients.
func rateOf(p *fed.Plan) clientopt.Rate {
	c := &p.Client
	rate := clientopt.Rate{Base: c.Rate, Factor: c.Decay.Factor, Every: c.Decay.Every, Warmup: c.Warmup}
	if c.RateEnd > 0 {
		rate.End, rate.Rounds = c.RateEnd, p.Rounds
	}
	return rate
}

// withDecay adds the plan's weight decay to an optimizer.
func withDecay(c *fed.Client, k *kernel.Set, r clientopt.Rate, o fed.ClientOptimizer) fed.ClientOptimizer {
	if c.WeightDecay == (fed.WeightDecay{}) {
		return o
	}
	return &clientopt.Decay{Kernel: k, Rate: r, All: c.WeightDecay.All, Correction: c.WeightDecay.Correction, Inner: o}
}

// newTuner returns a trainer for fine-tuning: plain descent without a proximal term, control
// variates or look-ahead steps (song2021, appendix B). It keeps the plan's weight decay, and
// the moments unless they are reset. If the plan's learning rate falls along a cosine, the
// learning rate in fine-tuning falls to 0 along another cosine.
func newTuner(p *fed.Plan, k *kernel.Set) fed.LocalTrainer {
	f, c := p.Evaluate.FineTune, &p.Client
	rate := clientopt.Rate{Base: f.Rate}
	if f.Rate == 0 {
		rate.Base = c.Rate
	}
	if c.RateEnd > 0 {
		rate.From, rate.Rounds = p.Rounds, 1
	}
	earlier := workOf(p)
	return &localtrain.Descent{
		Work:      localtrain.Work{Batch: c.Batch, Steps: f.Steps, Epochs: f.Epochs},
		Optimizer: withDecay(c, k, rate, findClientOptimizer(c.Optimizer).build(c, k, rate)),
		Earlier:   &earlier,
	}
}

// NewFitter returns a trainer that fits only the personal layers of a client that did not take
// part in the plan's rounds. The learning rate falls from the plan's rate to 0 along a cosine
// over the given number of steps, all of which are in round 0.
func NewFitter(p *fed.Plan, k *kernel.Set, steps int) fed.LocalTrainer {
	entry := findClientOptimizer(p.Client.Optimizer)
	if entry == nil {
		// The algorithm has its own optimizer, which needs the server.
		entry = findClientOptimizer("adam")
	}
	c := p.Client
	c.Moments = momentsReset
	rate := clientopt.Rate{Base: c.Rate, Rounds: 1}
	if c.Beta1 == 0 && c.Beta2 == 0 {
		c.Beta1, c.Beta2, c.Epsilon = 0.9, 0.999, 1e-8
	}
	if !(rate.Base > 0) {
		rate.Base = entry.rate
	}
	return &localtrain.Descent{
		Work:      localtrain.Work{Batch: c.Batch, Steps: steps},
		Optimizer: &clientopt.Hold{Inner: withDecay(&c, k, rate, entry.build(&c, k, rate))},
	}
}
