package recipe

import (
	"slices"

	"loadstar/fed"
	"loadstar/fed/serveropt"
)

// serverOptimizer describes one permitted value of server.optimizer.
type serverOptimizer struct {
	name     string
	settings []setting
	defaults func(s *fed.Server)
	// state is the number of float64 vectors that the optimizer stores, each as long as the
	// shared weights.
	state int
	build func(s *fed.Server) fed.ServerOptimizer
}

// serverOptimizers lists the optimizers in the order of the documentation. Each is defined
// in the file of the algorithm with the same name.
var serverOptimizers = []*serverOptimizer{
	&fedavgOptimizer, &fedavgmOptimizer, &fedadagradOptimizer, &fedadamOptimizer, &fedyogiOptimizer,
}

// Settings that several server optimizers have.
var (
	serverRate  = setting{path: "server.lr", about: "learning rate", initial: 1, must: positive}
	serverBeta1 = setting{path: "server.beta1", about: "decay of the momentum", must: belowOne}
)

// serverOptimizerSettings returns the settings of the algorithm's server optimizer. If the plan
// chooses the optimizer, it has only the settings of that optimizer. If the optimizer is
// unknown, the plan has the settings of all optimizers, so a wrong name causes only one error.
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
	choice := setting{path: "server.optimizer", about: "optimizer of the shared weights", initial: names[0], choices: names}
	return append(all, choice)
}

func findServerOptimizer(name string) *serverOptimizer {
	i := slices.IndexFunc(serverOptimizers, func(o *serverOptimizer) bool { return o.name == name })
	if i < 0 {
		return nil
	}
	return serverOptimizers[i]
}

// newServerOptimizer builds the server optimizer of a plan. If the algorithm has none, the
// server moves the shared weights by the displacement, or by server.lr times the
// displacement.
func newServerOptimizer(p *fed.Plan) fed.ServerOptimizer {
	if o := findServerOptimizer(p.Server.Optimizer); o != nil {
		return o.build(&p.Server)
	}
	if p.Server.Rate > 0 {
		return serveropt.Descent{Rate: p.Server.Rate}
	}
	return serveropt.Descent{Rate: 1}
}
