package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
)

var fednorm = algorithm{
	name:  "fednorm",
	about: "the server merges the updates of a period, weighted by a bell curve over distance and loss",
	paper: "fekri2023, source of model and cohort; epochs, rounds and the period are our choice",
	settings: []setting{
		{path: "server.peak", about: "height of the curve over lambda", initial: "1", choices: []string{"1", "max-lambda"}},
		{
			path: "server.loss", about: "weights whose loss is compared; received: the weights that clients received (fekri2023, equation 2); trained: the weights after training (equation 1b)",
			initial: "received", choices: []string{"received", "trained"}, quiet: true,
		},
	},
	optimizers:      allOptimizers,
	serverOptimizer: anyOptimizer,
	weightings:      byClients,
	schedules:       []string{"periodic", "synchronous", "buffered"},
	plain:           "compares the distance and the loss of each update",
	defaults: func(p *fed.Plan) {
		p.Model.Name = "fekri2023"
		p.Rounds = 20
		p.Client.Steps, p.Client.Epochs = 0, 1
		p.Schedule.Cohort, p.Schedule.Buffer = 9, 9
		p.Evaluate.Every = 1
		p.Simulate.Delay = "fekri2023"
	},
	gradients: perStep(1),
	aggregator: func(p *fed.Plan) fed.Aggregator {
		return aggregate.FedNorm{
			PeakMaxLambda: p.Server.Peak == "max-lambda", ByExamples: p.Server.Weighting == "examples", Trained: p.Server.Loss == "trained",
			MaxExamples: p.Server.MaxExamples,
		}
	},
}
