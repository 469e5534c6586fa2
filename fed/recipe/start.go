package recipe

import (
	"loadstar/fed"
	"loadstar/fed/clientopt"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

// startServerData is the value of start for a run whose weights are first trained on the
// server's data.
const startServerData = "server-data"

// StartsOnServerData reports whether the shared weights are trained on the server's data
// before the first round (song2021, section 4.1).
func StartsOnServerData(p *fed.Plan) bool { return p.Start == startServerData }

// fewSteps limits the steps before the first round, because a server runs them for users'
// plans.
var fewSteps = rule{"from 1 to 10000000", func(v float64) bool { return v >= 1 && v <= 1e7 }}

// startSettings returns the settings of plans that start on the server's data.
func (a *algorithm) startSettings() []setting {
	all := []setting{setting{
		path: "server.start_steps", about: "gradient steps on the server's data before the first round, with the clients' optimizer and batch size; the default is our choice",
		initial: 2000, must: fewSteps,
	}.only(StartsOnServerData)}
	for _, s := range a.settings {
		if s.path == serverClients.path {
			return all // all plans of fedsim have server.clients
		}
	}
	return append(all, serverClients.only(StartsOnServerData))
}

var serverClients = setting{path: "server.clients", about: "share of the clients whose data is on the server; they do not train", initial: 0.05, must: belowOne}

// NewStarter returns the trainer for the steps before the first round of a plan that starts on
// the server's data: descent with the client's optimizer at its initial learning rate, without
// a proximal term, control variates or look-ahead steps.
func NewStarter(p *fed.Plan, k *kernel.Set) fed.LocalTrainer {
	c := p.Client
	c.Moments = momentsReset
	rate := clientopt.Rate{Base: c.Rate}
	return &localtrain.Descent{
		Work:      localtrain.Work{Batch: c.Batch, Steps: p.Server.StartSteps},
		Optimizer: withDecay(&c, k, rate, findClientOptimizer(c.Optimizer).build(&c, k, rate)),
	}
}
