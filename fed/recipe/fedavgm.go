package recipe

import (
	"loadstar/fed"
	"loadstar/fed/serveropt"
)

var fedavgm = algorithm{
	name:            "fedavgm",
	about:           "fedavg with momentum on the server",
	paper:           "bose2023 (FedAvgMomentum), source of the defaults; with dampening 0, reddi2021",
	optimizers:      allOptimizers,
	serverOptimizer: "fedavgm",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	begins:          true,
	gradients:       perStep(1),
}

var fedavgmOptimizer = serverOptimizer{
	name: "fedavgm",
	settings: []setting{serverRate, serverBeta1, {
		path:  "server.dampening",
		about: "a new update has the factor 1 - dampening; dampening is 0 in reddi2021 and beta1 in bose2023 (default)",
		must:  unitInterval,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			p.Server.Dampening = p.Server.Beta1
		},
	}},
	defaults: func(s *fed.Server) { s.Rate, s.Beta1 = 1, 0.99 },
	state:    1,
	build: func(s *fed.Server) fed.ServerOptimizer {
		return &serveropt.Momentum{Rate: s.Rate, Beta1: s.Beta1, Dampening: s.Dampening}
	},
}
