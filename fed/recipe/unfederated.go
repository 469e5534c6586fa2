package recipe

import (
	"loadstar/fed"
	"loadstar/forecast"
)

// There are two references for federated training: every client trains alone, or one model is
// trained on the readings of all clients.

var local = algorithm{
	name:       "local",
	about:      "every client trains alone; nothing is sent",
	paper:      "bose2023, configuration 3; bose2024, P3",
	optimizers: plainOptimizers,
	weightings: uniform,
	noServer:   true,
	partition:  forecast.PartitionAll,
	gradients:  perStep(1),
}

var pooled = algorithm{
	name:       "pooled",
	about:      "one model is trained on the readings of all clients in one place, for comparison; simulator only",
	paper:      "bose2023, No-FL: as many gradient steps as a client takes in 2000 rounds, but in few rounds, because each round resets the optimizer",
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
