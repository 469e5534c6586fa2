// Package recipe knows the algorithms by the names of their papers: which settings
// each has, their defaults, and how it is put together from the parts in the
// packages beside it. It is the only registry of names, and the only place with
// defaults.
//
// A plan is read strictly ([Read]): over the defaults of its algorithm, with every
// problem found at once. What it then says is all there is to say, so that the
// effective plan can be kept with a run ([Write]). [Compose] makes the parts of a
// server and its clients from it, and [Frame] what they train on.
package recipe

import (
	"slices"

	"loadstar/fed"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

// algorithm is an entry of the registry.
type algorithm struct {
	name, about, paper string

	// client are settings beyond those of the optimizer and of the work.
	client string
	// optimizers are those that a client can have, the first by default.
	optimizers []string
	// works says that the work of a round is a setting: batch, steps and so on.
	works bool

	// server are settings beyond those of the server optimizer.
	server string
	// behind is the server optimizer, "any" if it is a setting, and empty if there
	// is none to set.
	behind string
	// weightings are those that make sense, the first by default.
	weightings []string
	// discounts says that staleness is discounted.
	discounts bool

	// kinds are the schedules, the first by default; none if there is nothing to
	// schedule.
	kinds []string
	// eager says that every update is merged at once.
	eager bool
	// alone says that nothing travels: there is no server.
	alone bool
	// partition is the only one, if there is only one.
	partition string

	// set changes the defaults of the house.
	set func(p *fed.Plan)
	// aggregator is the mean if it is nil.
	aggregator func(p *fed.Plan) fed.Aggregator
	// trainer is plain descent if it is nil.
	trainer func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer
}

// choice is an optimizer with its settings.
type choice struct {
	name, keys string
	set        func(p *fed.Plan)
}

var clientOptimizers = []choice{
	{name: "sgd", keys: "lr", set: clientRate(0.1)}, // ours
	{name: "adam", keys: "lr beta1 beta2 epsilon", set: clientRate(0.001)},
	{name: "amsgrad", keys: "lr beta1 beta2 epsilon", set: clientRate(0.001)},
	{name: "prox", keys: "lr mu", set: clientRate(0.1)},
	{name: "proxadam", keys: "lr beta1 beta2 epsilon mu", set: clientRate(0.001)},
}

func clientRate(rate float64) func(*fed.Plan) { return func(p *fed.Plan) { p.Client.Rate = rate } }

var serverOptimizers = []choice{
	{name: "fedavg", keys: "lr", set: func(p *fed.Plan) { p.Server.Rate = 1 }},
	{name: "fedavgm", keys: "lr beta1 dampening", set: func(p *fed.Plan) { p.Server.Rate, p.Server.Beta1 = 1, 0.99 }},
	{name: "fedadagrad", keys: "lr beta1 tau second_moment", set: func(p *fed.Plan) { p.Server.Rate, p.Server.Beta1 = 0.03, 0 }},
	{name: "fedadam", keys: "lr beta1 beta2 tau second_moment", set: func(p *fed.Plan) {
		p.Server.Rate, p.Server.Beta1, p.Server.Beta2 = 0.01, 0.99, 0.999
	}},
	{name: "fedyogi", keys: "lr beta1 beta2 tau second_moment", set: func(p *fed.Plan) {
		p.Server.Rate, p.Server.Beta1, p.Server.Beta2 = 0.01, 0.9, 0.99
	}},
}

// names lists choices.
func names(all []choice) []string {
	var out []string
	for _, c := range all {
		out = append(out, c.name)
	}
	return out
}

// Summary is an algorithm in a word, a sentence, and where it and its defaults come
// from.
type Summary struct {
	Name, About, Paper string
	// Alone says that nothing travels.
	Alone bool
}

// Algorithms returns the algorithms there are.
func Algorithms() []Summary {
	var all []Summary
	for _, a := range algorithms {
		all = append(all, Summary{a.name, a.about, a.paper, a.alone})
	}
	return all
}

// Names returns the names of the algorithms.
func Names() []string {
	var all []string
	for _, a := range algorithms {
		all = append(all, a.name)
	}
	return all
}

func find(name string) *algorithm {
	i := slices.IndexFunc(algorithms, func(a algorithm) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return &algorithms[i]
}
