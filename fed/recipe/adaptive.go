package recipe

import (
	"loadstar/fed"
	"loadstar/fed/serveropt"
)

// The adaptive server optimizers of reddi2021 differ in the rule for the second moment and in
// their defaults.

var fedadagrad = algorithm{
	name:            "fedadagrad",
	about:           "the server divides each coordinate's step by the root of the coordinate's summed squared updates",
	paper:           "reddi2021, source of beta1 and tau; the paper tunes lr, and 0.03 is our choice",
	optimizers:      allOptimizers,
	serverOptimizer: "fedadagrad",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	begins:          true,
	gradients:       perStep(1),
}

var fedadam = algorithm{
	name:            "fedadam",
	about:           "the server runs Adam on the mean update",
	paper:           "reddi2021, source of tau, which bose2023 does not state; bose2023, source of lr, beta1 and beta2; for a comparison with fedyogi, set equal betas",
	optimizers:      allOptimizers,
	serverOptimizer: "fedadam",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	begins:          true,
	gradients:       perStep(1),
}

var fedyogi = algorithm{
	name:            "fedyogi",
	about:           "fedadam with a second moment that decreases more slowly after large updates",
	paper:           "reddi2021, source of beta1, beta2 and tau; the paper tunes lr, and 0.01 is the value of bose2023 for fedadam, whose betas differ",
	optimizers:      allOptimizers,
	serverOptimizer: "fedyogi",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	begins:          true,
	gradients:       perStep(1),
}

var adaptiveSettings = []setting{
	serverRate, serverBeta1,
	{path: "server.tau", about: "adaptivity: added to the root of the second moment", initial: 1e-3, must: positive},
	{
		path: "server.second_moment", about: "quantity that is squared: update (bose2023) or momentum (as printed in reddi2021)",
		initial: "update", choices: []string{"update", "momentum"},
	},
}

// withBeta2 lists the settings of the optimizers whose second moment decays at the rate
// beta2.
var withBeta2 = append([]setting{
	{path: "server.beta2", about: "decay of the second moment", must: belowOne},
}, adaptiveSettings...)

var fedadagradOptimizer = serverOptimizer{
	name:     "fedadagrad",
	settings: adaptiveSettings,
	defaults: func(s *fed.Server) { s.Rate, s.Beta1 = 0.03, 0 },
	state:    2,
	build:    adaptive(serveropt.Adagrad),
}

var fedadamOptimizer = serverOptimizer{
	name:     "fedadam",
	settings: withBeta2,
	defaults: func(s *fed.Server) { s.Rate, s.Beta1, s.Beta2 = 0.01, 0.99, 0.999 },
	state:    2,
	build:    adaptive(serveropt.Adam),
}

var fedyogiOptimizer = serverOptimizer{
	name:     "fedyogi",
	settings: withBeta2,
	defaults: func(s *fed.Server) { s.Rate, s.Beta1, s.Beta2 = 0.01, 0.9, 0.99 },
	state:    2,
	build:    adaptive(serveropt.Yogi),
}

func adaptive(rule serveropt.Rule) func(*fed.Server) fed.ServerOptimizer {
	return func(s *fed.Server) fed.ServerOptimizer {
		o := &serveropt.Adaptive{Rule: rule, Rate: s.Rate, Beta1: s.Beta1, Beta2: s.Beta2, Tau: s.Tau}
		if s.SecondMoment == "momentum" {
			o.SecondMoment = serveropt.OfMomentum
		}
		return o
	}
}
