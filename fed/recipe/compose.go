package recipe

import (
	"fmt"
	"math"
	"time"

	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/clientopt"
	"loadstar/fed/exact"
	"loadstar/fed/localtrain"
	"loadstar/fed/schedule"
	"loadstar/fed/serveropt"
	"loadstar/nn/kernel"
)

// Composition is the parts that a plan names, put together. Aggregator and
// Optimizer remember things: a run has its own.
type Composition struct {
	Aggregator fed.Aggregator
	Optimizer  fed.ServerOptimizer
	Scheduler  fed.Scheduler
	// Scale is that of the sums of updates, Control that of control variates.
	Scale, Control exact.Scale
	// Weight returns what an update of so many examples weighs.
	Weight func(examples int) int64
	// NewTrainer returns what a worker trains with.
	NewTrainer func(k *kernel.Set) fed.LocalTrainer
	// FineTune is what a worker trains with before clients are scored in the end; nil
	// if the plan has none.
	FineTune func(k *kernel.Set) fed.LocalTrainer
}

// controlBound is far above any gradient with which training goes on.
const controlBound = 1 << 20

// Compose makes the parts of a plan that was read, for a fleet of so many clients:
// those that train, so without those held out or on the server; of pooled, 1.
func Compose(p *fed.Plan, fleet int) (*Composition, error) {
	a := find(p.Algorithm)
	if a == nil {
		return nil, fmt.Errorf("no algorithm %q", p.Algorithm)
	}
	if wrong := validate(a, p); len(wrong) > 0 {
		return nil, fmt.Errorf("%s", wrong[0].text)
	}
	if fleet < 1 {
		return nil, fmt.Errorf("nobody is left to train")
	}
	s := &p.Schedule
	if s.Cohort > fleet {
		return nil, fmt.Errorf("schedule.cohort is %d, but only %d clients train", s.Cohort, fleet)
	}
	if s.Kind == "buffered" && s.Buffer > fleet {
		return nil, fmt.Errorf("schedule.buffer is %d, but only %d clients train, and each is merged once at a time", s.Buffer, fleet)
	}
	c := &Composition{
		Aggregator: a.aggregate(p),
		Optimizer:  optimizer(p),
		NewTrainer: func(k *kernel.Set) fed.LocalTrainer { return a.train(p, k) },
	}
	if p.Evaluate.FineTune.Steps > 0 || p.Evaluate.FineTune.Epochs > 0 {
		c.FineTune = func(k *kernel.Set) fed.LocalTrainer { return fineTune(p, k) }
	}
	var updates int
	c.Scheduler, updates = scheduler(p, fleet)
	bound := p.Server.Bound
	if a.alone {
		bound = 1 << 10 // nothing is sent, or nobody else is there
	}
	most := maxWeight(p)
	var err error
	if c.Scale, err = exact.NewScale(bound, most, int64(updates)); err != nil {
		return nil, err
	}
	if c.Aggregator.Needs().Control { // variates are gradients, and all weigh the same
		if c.Control, err = exact.NewScale(controlBound, 1, int64(updates)); err != nil {
			return nil, err
		}
	}
	c.Weight = func(examples int) int64 { return 1 }
	if p.Server.Weighting == "examples" {
		c.Weight = func(examples int) int64 { return min(int64(examples), most) }
	}
	return c, nil
}

func (a *algorithm) aggregate(p *fed.Plan) fed.Aggregator {
	if a.aggregator == nil {
		return aggregate.Mean{}
	}
	return a.aggregator(p)
}

func (a *algorithm) train(p *fed.Plan, k *kernel.Set) fed.LocalTrainer {
	c := &p.Client
	work := localtrain.Work{Batch: c.Batch, Steps: c.Steps, Epochs: c.Epochs, ResampleRound: c.Resample == "round"}
	rate := clientopt.Rate{Base: c.Rate, Factor: c.Decay.Factor, Every: c.Decay.Every}
	var o fed.ClientOptimizer
	switch {
	case a.name == "scaffold":
		o = &clientopt.Scaffold{Kernel: k, Rate: rate}
	case c.Optimizer == "prox" || c.Optimizer == "proxadam":
		o = &clientopt.Prox{Kernel: k, Mu: c.Mu, Inner: plain(p, k, rate)}
	default:
		o = plain(p, k, rate)
	}
	if a.trainer == nil {
		return &localtrain.Descent{Work: work, Optimizer: o}
	}
	return a.trainer(p, k, work, o)
}

// plain returns the client's optimizer without a proximal term.
func plain(p *fed.Plan, k *kernel.Set, rate clientopt.Rate) fed.ClientOptimizer {
	c := &p.Client
	switch c.Optimizer {
	case "adam", "proxadam":
		return &clientopt.Adam{Kernel: k, Rate: rate, Beta1: c.Beta1, Beta2: c.Beta2, Epsilon: c.Epsilon}
	case "amsgrad":
		return &clientopt.AMSGrad{Kernel: k, Rate: rate, Beta1: c.Beta1, Beta2: c.Beta2, Epsilon: c.Epsilon}
	}
	return &clientopt.SGD{Kernel: k, Rate: rate}
}

// fineTune is training as usual, without proximal terms, control variates and
// look-ahead (song2021, appendix B).
func fineTune(p *fed.Plan, k *kernel.Set) fed.LocalTrainer {
	f := p.Evaluate.FineTune
	rate := clientopt.Rate{Base: f.Rate}
	if f.Rate == 0 {
		rate.Base = p.Client.Rate
	}
	return &localtrain.Descent{
		Work:      localtrain.Work{Batch: p.Client.Batch, Steps: f.Steps, Epochs: f.Epochs},
		Optimizer: plain(p, k, rate),
	}
}

func optimizer(p *fed.Plan) fed.ServerOptimizer {
	s := &p.Server
	adaptive := &serveropt.Adaptive{Rate: s.Rate, Beta1: s.Beta1, Beta2: s.Beta2, Tau: s.Tau}
	if s.SecondMoment == "momentum" {
		adaptive.SecondMoment = serveropt.OfMomentum
	}
	switch s.Optimizer {
	case "fedavgm":
		return &serveropt.Momentum{Rate: s.Rate, Beta1: s.Beta1, Dampening: s.Dampening}
	case "fedadagrad":
		adaptive.Rule = serveropt.Adagrad
	case "fedadam":
		adaptive.Rule = serveropt.Adam
	case "fedyogi":
		adaptive.Rule = serveropt.Yogi
	case "fedavg":
		return serveropt.Descent{Rate: s.Rate}
	default: // there is none to set: fedasync, fedavgadaptive, local, pooled
		if s.Rate > 0 {
			return serveropt.Descent{Rate: s.Rate}
		}
		return serveropt.Descent{Rate: 1}
	}
	return adaptive
}

func discount(p *fed.Plan) aggregate.Discount {
	switch p.Server.Discount {
	case "polynomial":
		return aggregate.Polynomial(p.Server.Exponent)
	case "hinge":
		return aggregate.Hinge(p.Server.Exponent, p.Server.Hinge)
	}
	return aggregate.Constant()
}

// scheduler also returns the most updates of one version that are ever merged.
func scheduler(p *fed.Plan, fleet int) (s fed.Scheduler, updates int) {
	x := &p.Schedule
	cohort := x.Cohort
	if cohort == 0 {
		cohort = fleet
	}
	switch x.Kind {
	case "buffered":
		return schedule.Buffered{Running: cohort, Buffer: x.Buffer}, min(fleet, cohort+x.Buffer-1)
	case "periodic":
		return schedule.Periodic{Running: cohort, Period: time.Duration(x.Period)}, cohort
	}
	asked := min(int(math.Ceil(float64(cohort)*(1+x.Over)-1e-9)), fleet)
	return schedule.Synchronous{
		Cohort: cohort, Asked: asked,
		Quorum:   int(math.Ceil(float64(cohort)*x.Quorum - 1e-9)),
		Deadline: time.Duration(x.Deadline),
	}, asked
}
