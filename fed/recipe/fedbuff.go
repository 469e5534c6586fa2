package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
)

var fedbuff = algorithm{
	name:            "fedbuff",
	about:           "the server merges a buffer of updates, discounted by staleness, with any server optimizer",
	paper:           "Nguyen et al. 2022, source of the buffer of 10 and the discount",
	settings:        discountSettings,
	optimizers:      allOptimizers,
	serverOptimizer: anyOptimizer,
	weightings:      byExamples,
	schedules:       []string{"buffered", "periodic"},
	plain:           "merges updates of several versions, so a sum can contain few updates of each version",
	gradients:       perStep(1),
	aggregator:      func(p *fed.Plan) fed.Aggregator { return aggregate.Buffered{Discount: discount(p)} },
}
