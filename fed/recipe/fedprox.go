package recipe

var fedprox = algorithm{
	name:            "fedprox",
	about:           "fedavg whose clients are held near the received weights by a proximal term",
	paper:           "Li et al. 2020; bose2024, whose alpha is mu/2; mu is ours, as neither says one",
	optimizers:      proximalOptimizers,
	serverOptimizer: "fedavg",
	weightings:      byExamples,
	schedules:       synchronousOnly,
	gradients:       perStep(1),
}
