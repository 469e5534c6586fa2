package recipe

import (
	"loadstar/fed"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

var pfedme = algorithm{
	name:  "pfedme",
	about: "each client trains a personal model near the shared one and moves the shared one towards it",
	paper: "Dinh et al. 2020, source of lambda, steps, inner_steps and lr, as compared in song2021; inner_lr is our choice",
	settings: []setting{
		innerRate,
		{path: "client.inner_steps", about: "inner steps per step", initial: 5, must: atLeastOne},
		{path: "client.lambda", about: "strength of the pull of the personal model towards the shared one", initial: 15, must: positive},
	},
	optimizers:      []string{"sgd", "adam", "amsgrad"},
	serverOptimizer: "fedavg",
	weightings:      byClients,
	schedules:       synchronousOnly,
	noDecay:         true,
	defaults: func(p *fed.Plan) {
		song2021(p)
		p.Client.Epochs, p.Client.Steps, p.Client.Inner = 0, 20, 0.01
		if p.Client.Optimizer == "sgd" {
			p.Client.Rate = 0.005
		}
	},
	gradients: func(p *fed.Plan) int { return p.Client.InnerSteps },
	trainer: func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
		return &localtrain.PFedMe{
			Work: w, Kernel: k, Lambda: p.Client.Lambda, Inner: p.Client.Inner, InnerSteps: p.Client.InnerSteps, Optimizer: o,
		}
	},
}
