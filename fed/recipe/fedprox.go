package recipe

var fedprox = algorithm{
	name:            "fedprox",
	about:           "fedavg with a proximal term that keeps clients near the received weights",
	paper:           "Li et al. 2020; bose2024, whose alpha is mu/2; neither paper states mu, so the default is our choice",
	optimizers:      proximalOptimizers,
	serverOptimizer: "fedavg",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	begins:          true,
	averages:        true,
	gradients:       perStep(1),
}
