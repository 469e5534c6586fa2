package recipe

import "loadstar/fed"

var reptile = algorithm{
	name:            "reptile",
	about:           "the server moves part of the way to the mean of the clients' models, which then adapt quickly",
	paper:           "Nichol et al. 2018; as song2021 compares it, which lr is from",
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
