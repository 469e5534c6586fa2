package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
)

var fedavgadaptive = algorithm{
	name:  "fedavgadaptive",
	about: "the server divides each client's update by the root of that client's second moment",
	paper: "bose2024; it states no values, the defaults are ours",
	settings: []setting{
		serverRate, serverBeta1,
		{path: "server.epsilon", about: "added to the root of the second moment", initial: 1e-3, must: positive},
	},
	optimizers:  allOptimizers,
	weightings:  uniform,
	schedules:   synchronousOnly,
	begins:      true,
	defaults:    func(p *fed.Plan) { p.Server.Rate, p.Server.Beta1 = 0.001, 0.9 },
	gradients:   perStep(1),
	serverState: vectors{perClient: 1},
	aggregator: func(p *fed.Plan) fed.Aggregator {
		return &aggregate.PerClient{Beta1: p.Server.Beta1, Epsilon: p.Server.Epsilon}
	},
}
