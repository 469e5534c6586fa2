package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/clientopt"
	"loadstar/nn/kernel"
)

var scaffold = algorithm{
	name:            "scaffold",
	about:           "control variates correct the drift of each client",
	paper:           "Karimireddy et al. 2020; reddi2021, algorithm 6, option II; reddi2021 tunes client.lr, and 0.1 is our choice; the weighting is uniform as in Karimireddy et al., whereas reddi2021 weights by examples",
	optimizers:      []string{"sgd"},
	serverOptimizer: "fedavg",
	weightings:      byClients,
	schedules:       synchronousOnly,
	gradients:       perStep(1),
	serverState:     vectors{total: 1},
	clientOptimizer: func(k *kernel.Set, r clientopt.Rate) fed.ClientOptimizer {
		return &clientopt.Scaffold{Kernel: k, Rate: r}
	},
	aggregator: func(*fed.Plan) fed.Aggregator { return &aggregate.Scaffold{} },
}
