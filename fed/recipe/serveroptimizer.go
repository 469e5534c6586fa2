package recipe

import (
	"slices"

	"loadstar/fed"
	"loadstar/fed/serveropt"
)

// serverOptimizer is a value of server.optimizer.
type serverOptimizer struct {
	name     string
	settings []setting
	defaults func(s *fed.Server)
	// state is how many float64 vectors as long as the shared weights it keeps.
	state int
	build func(s *fed.Server) fed.ServerOptimizer
}

// serverOptimizers are listed in this order. Each stands in the file of the algorithm
// that is named after it.
var serverOptimizers = []*serverOptimizer{
	&fedavgOptimizer, &fedavgmOptimizer, &fedadagradOptimizer, &fedadamOptimizer, &fedyogiOptimizer,
}

// Settings that several server optimizers have in common.
var (
	serverRate  = setting{path: "server.lr", about: "learning rate", initial: 1, must: positive}
	serverBeta1 = setting{path: "server.beta1", about: "decay of the momentum", must: belowOne}
)

// serverOptimizerSettings returns the settings of the algorithm's server optimizer. If
// the plan chooses it, the plan has those of its choice, or all if that is unknown, so
// that one mistake is reported once.
func (a *algorithm) serverOptimizerSettings() []setting {
	if a.serverOptimizer != anyOptimizer {
		if o := findServerOptimizer(a.serverOptimizer); o != nil {
			return o.settings
		}
		return nil
	}
	var names []string
	var all []setting
	for _, o := range serverOptimizers {
		names = append(names, o.name)
		for _, s := range o.settings {
			all = append(all, s.only(func(p *fed.Plan) bool {
				return p.Server.Optimizer == o.name || findServerOptimizer(p.Server.Optimizer) == nil
			}))
		}
	}
	choice := setting{path: "server.optimizer", about: "what moves the shared weights", initial: names[0], choices: names}
	return append(all, choice)
}

func findServerOptimizer(name string) *serverOptimizer {
	i := slices.IndexFunc(serverOptimizers, func(o *serverOptimizer) bool { return o.name == name })
	if i < 0 {
		return nil
	}
	return serverOptimizers[i]
}

// newServerOptimizer builds the server optimizer of a plan. Without one, the server
// moves by the whole displacement, or by the share server.lr of it.
func newServerOptimizer(p *fed.Plan) fed.ServerOptimizer {
	if o := findServerOptimizer(p.Server.Optimizer); o != nil {
		return o.build(&p.Server)
	}
	if p.Server.Rate > 0 {
		return serveropt.Descent{Rate: p.Server.Rate}
	}
	return serveropt.Descent{Rate: 1}
}
