package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
)

var fedavgadaptive = algorithm{
	name:  "fedavgadaptive",
	about: "the server divides each client's update by the root of that client's second moment",
	paper: "bose2024, which states no values; the defaults are our choice",
	settings: []setting{
		serverRate, serverBeta1,
		{
			path: "server.states", about: "one: all clients have the same shared weights (bose2024, figure 5 as printed); client: each client has a copy that only its own updates move (the figure's caption and section 3)",
			initial: "one", choices: []string{"one", statesClient}, quiet: true,
		},
		{path: "server.epsilon", about: "added to the root of the second moment", initial: 1e-3, must: positive},
	},
	optimizers: allOptimizers,
	weightings: uniform,
	schedules:  synchronousOnly,
	plain:      "divides each update by a moment of its client, so the server needs each update",
	begins:     true,
	defaults:   func(p *fed.Plan) { p.Server.Rate, p.Server.Beta1 = 0.001, 0.9 },
	gradients:  perStep(1),
	check: func(p *fed.Plan, wrong report) {
		if ClientStates(p) && BeginsOwn(p) {
			wrong("client.begin", "client.begin is own, but with server.states client a turn begins with the client's copy; remove client.begin")
		}
	},
	serverState: vectors{perClient: 1},
	aggregator: func(p *fed.Plan) fed.Aggregator {
		return &aggregate.PerClient{Beta1: p.Server.Beta1, Epsilon: p.Server.Epsilon}
	},
}
