package recipe

import (
	"loadstar/fed"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

// The clients of meta-learners minimise the loss after one further gradient step.

// innerRate is the setting for the rate of the look-ahead step and of pfedme's inner
// solver.
var innerRate = setting{path: "client.inner_lr", about: "rate of the look-ahead or inner step", initial: 0.001, must: positive}

// query is the setting for the share of examples reserved for the gradient after the look-ahead
// step.
var query = setting{
	path: "client.query", about: "share of a client's examples that only the gradient after the look-ahead step uses (song2021: 0.2); 0 means that both gradients use all examples",
	must: belowOne, quiet: true,
}

func queryOf(p *fed.Plan) localtrain.Query {
	return localtrain.Query{Share: p.Client.Query}
}

var perfedavg = algorithm{
	name:            "perfedavg",
	about:           "clients minimise the loss after one further local step, with a first-order approximation",
	paper:           "Fallah et al. 2020 (FO), as compared in song2021; inner_lr is our choice, because with a much larger one, steps increase the loss",
	settings:        []setting{innerRate, query},
	optimizers:      plainOptimizers,
	serverOptimizer: "fedavg",
	weightings:      byClients,
	schedules:       synchronousOnly,
	defaults:        song2021,
	gradients:       perStep(2), // one for the look-ahead step, one after it
	trainer: func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
		return &localtrain.PerFedAvg{Work: w, Kernel: k, Inner: p.Client.Inner, Optimizer: o, Query: queryOf(p)}
	},
}

var fedmeta = algorithm{
	name:  "fedmeta",
	about: "clients minimise the loss after one further local step, with a difference of gradients for the Hessian",
	paper: "Chen et al. 2018; Fallah et al. 2020 (HF), as compared in song2021; delta and inner_lr are our choice",
	settings: []setting{
		innerRate, query,
		{path: "client.delta", about: "distance over which gradients are compared", initial: 0.1, must: positive},
	},
	optimizers:      plainOptimizers,
	serverOptimizer: "fedavg",
	weightings:      byClients,
	schedules:       synchronousOnly,
	defaults:        song2021,
	gradients:       perStep(4), // two as in perfedavg, and two for the Hessian
	trainer: func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
		return &localtrain.FedMeta{Work: w, Kernel: k, Inner: p.Client.Inner, Delta: p.Client.Delta, Optimizer: o, Query: queryOf(p)}
	},
}
