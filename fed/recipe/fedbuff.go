package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
)

var fedbuff = algorithm{
	name:            "fedbuff",
	about:           "updates are merged by the bufferful, discounted by staleness, behind any server optimizer",
	paper:           "Nguyen et al. 2022, which the buffer of 10 and the discount are from",
	settings:        discountSettings,
	optimizers:      allOptimizers,
	serverOptimizer: anyOptimizer,
	weightings:      byExamples,
	schedules:       []string{"buffered", "periodic"},
	gradients:       perStep(1),
	aggregator:      func(p *fed.Plan) fed.Aggregator { return aggregate.Buffered{Discount: discount(p)} },
}
