package recipe

import (
	"loadstar/fed"
	"loadstar/forecast"
)

// The two ends that federated training is compared with: each client by itself, and
// all readings in one place.

var local = algorithm{
	name:       "local",
	about:      "every client trains alone, and nothing travels",
	paper:      "bose2023, configuration 3; bose2024, P3",
	optimizers: plainOptimizers,
	weightings: uniform,
	noServer:   true,
	partition:  forecast.PartitionAll,
	gradients:  perStep(1),
}

var pooled = algorithm{
	name:       "pooled",
	about:      "all readings in one place, as if there were no reason for federated learning: simulator only",
	paper:      "bose2023, No-FL: as many gradient steps as a client takes in its 2000 rounds, in few rounds so that moments last",
	optimizers: plainOptimizers,
	weightings: uniform,
	noServer:   true,
	pooled:     true,
	partition:  forecast.PartitionNone,
	defaults: func(p *fed.Plan) {
		p.Rounds, p.Client.Steps = 8, 1000
		p.Evaluate.Every = 1
	},
	gradients: perStep(1),
}
