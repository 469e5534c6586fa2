package recipe

import (
	"loadstar/fed"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

var fedsgd = algorithm{
	name:            "fedsgd",
	about:           "each client sends one gradient over all its examples, and the server takes one step",
	paper:           "McMahan et al. 2017; lr is our choice; client.lr is for personal layers",
	optimizers:      []string{"sgd"},
	fullPass:        true,
	serverOptimizer: "fedavg",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	defaults:        func(p *fed.Plan) { p.Server.Rate = 0.3 },
	gradients:       perStep(1),
	trainer: func(_ *fed.Plan, _ *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
		return &localtrain.Gradient{Batch: w.Batch, Optimizer: o}
	},
}
