package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
)

var fedsim = algorithm{
	name:  "fedsim",
	about: "the server corrects each client's model by a meta-gradient on the server's data",
	paper: "song2021",
	settings: []setting{
		{path: "server.delta", about: "distance over which server gradients are compared", initial: 0.25, must: positive},
		{path: "server.beta", about: "step size of the correction by the meta-gradient", initial: 0.25, must: nonNegative},
		{path: "server.beta_decay", about: "lower beta linearly to 0 over the rounds", initial: true},
		{
			path: "server.variant", about: "variant of the algorithm", initial: "full",
			choices: []string{"full", "no-prox", "server-gradient", "first-order"},
		},
		serverClients,
		{path: "server.batch", about: "number of the server's examples used in a round", initial: 64, must: atLeastOne},
	},
	optimizers:      proximalOptimizers,
	serverOptimizer: anyOptimizer,
	weightings:      uniform,
	schedules:       synchronousOnly,
	plain:           "corrects the model of each client, so the server needs each update",
	defaults: func(p *fed.Plan) {
		song2021(p)
		p.Client.Mu = 1
	},
	adjust: func(p *fed.Plan, given func(string) bool) {
		if p.Server.Variant == "no-prox" && !given("client.mu") {
			p.Client.Mu = 0
		}
	},
	check: func(p *fed.Plan, wrong report) {
		if p.Server.Variant == "no-prox" && p.Client.Mu != 0 {
			wrong("client.mu", "client.mu is %g; with server.variant no-prox it must be 0", p.Client.Mu)
		}
	},
	gradients: perStep(1),
	aggregator: func(p *fed.Plan) fed.Aggregator {
		a := aggregate.FedSIM{
			Delta: p.Server.Delta, Beta: p.Server.Beta,
			ServerGradient: p.Server.Variant == "server-gradient", FirstOrder: p.Server.Variant == "first-order",
		}
		if p.Server.BetaDecay {
			a.Rounds = p.Rounds
		}
		return a
	},
}
