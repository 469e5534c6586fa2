package recipe

import (
	"loadstar/fed"
	"loadstar/fed/serveropt"
)

var fedavg = algorithm{
	name:            "fedavg",
	about:           "the server averages the clients' models",
	paper:           "McMahan et al. 2017, source of the weighting by examples; bose2023, source of the other defaults",
	optimizers:      allOptimizers,
	serverOptimizer: "fedavg",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	begins:          true,
	averages:        true,
	gradients:       perStep(1),
}

var fedavgOptimizer = serverOptimizer{
	name: "fedavg",
	settings: []setting{
		serverRate,
		{path: "server.decay", about: "constant: the rate stays; linear: it falls to 0 over the rounds (song2021)", initial: "constant", choices: []string{"constant", "linear"}, quiet: true},
	},
	defaults: func(s *fed.Server) { s.Rate = 1 },
	build:    func(s *fed.Server) fed.ServerOptimizer { return serveropt.Descent{Rate: s.Rate} },
}
