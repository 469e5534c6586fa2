package recipe

import "loadstar/fed"

var reptile = algorithm{
	name:            "reptile",
	about:           "the server moves part of the way to the mean of the clients' models, and so finds a model that adapts quickly",
	paper:           "Nichol et al. 2018, as compared in song2021, source of lr",
	optimizers:      allOptimizers,
	serverOptimizer: "fedavg",
	weightings:      byClients,
	schedules:       synchronousOnly,
	defaults: func(p *fed.Plan) {
		song2021(p)
		p.Server.Rate = 0.25
	},
	gradients: perStep(1),
}
