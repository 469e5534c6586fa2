package recipe

import (
	"time"

	"loadstar/fed"
	"loadstar/fed/aggregate"
)

var fedasync = algorithm{
	name:  "fedasync",
	about: "the server merges each update on arrival; stale updates have less weight",
	paper: "Xie et al. 2019, source of alpha, exponent and hinge; fekri2023",
	settings: append([]setting{
		{path: "server.alpha", about: "share of the way to move towards a fresh client's weights", initial: 0.6, must: positiveShare},
	}, discountSettings...),
	optimizers: []string{"proxadam", "prox", "adam", "sgd", "amsgrad"},
	weightings: uniform,
	schedules:  []string{"buffered"},
	plain:      "merges each update alone",
	mergesEach: true,
	// The default step time is not 0. Otherwise all simulated clients would return at the
	// same time, and their updates would be merged together.
	defaults: func(p *fed.Plan) {
		p.Schedule.Buffer = 1
		p.Simulate.StepTime, p.Simulate.SpeedSpread = fed.Duration(20*time.Millisecond), 0.5
	},
	gradients: perStep(1),
	aggregator: func(p *fed.Plan) fed.Aggregator {
		return aggregate.Async{Alpha: p.Server.Alpha, Discount: discount(p)}
	},
}
