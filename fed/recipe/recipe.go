// Package recipe is the registry of algorithms, under the names of their papers. An
// algorithm's entry stands in one file: its settings and defaults, its parts, the
// gradients that a client takes and the vectors that the server keeps. Everything
// else in the package works on entries and knows no algorithm by name.
//
// [Read] reads a plan strictly, over the defaults of its algorithm, and reports all
// problems at once. The plan that it returns states every setting, so it can be
// stored with a run ([Write]). [Compose] builds the parts of a server and its clients
// from it, and [Frame] the model and its examples.
package recipe

import (
	"slices"

	"loadstar/fed"
	"loadstar/fed/clientopt"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

// algorithms is the registry, in the order in which the algorithms are listed.
var algorithms = []*algorithm{
	&fedavg, &fedprox, &fedavgm, &fedadagrad, &fedadam, &fedyogi, &fedavgadaptive, &scaffold, &fedsgd,
	&fedasync, &fedbuff, &fednorm, &fedsim,
	&perfedavg, &fedmeta, &pfedme, &reptile,
	&local, &pooled,
}

// algorithm is an entry of the registry. Only name, about, paper, optimizers,
// weightings and gradients are required.
type algorithm struct {
	name, about, paper string

	// settings are those that plans of this algorithm have in addition to the settings
	// of all plans, of the optimizers and of the schedule.
	settings []setting
	// optimizers are the client optimizers to choose from, the default first.
	optimizers []string
	// fullPass means that a turn is one pass over all examples, so the plan has no
	// steps or epochs to set.
	fullPass bool

	// serverOptimizer is the name of the server optimizer, anyOptimizer if the plan
	// chooses it, and empty if the aggregator needs none.
	serverOptimizer string
	// weightings are the permitted values of server.weighting, the default first.
	weightings []string
	// schedules are the permitted values of schedule.kind, the default first. Without
	// any, the whole fleet trains in every round.
	schedules []string
	// mergesEach means that every update is merged on arrival, so the buffer is fixed.
	mergesEach bool
	// noServer means that nothing is sent. pooled means that in addition one client
	// holds all readings.
	noServer, pooled bool
	// partition is the only permitted partition, or empty.
	partition string

	// defaults changes defaults: those of the settings, the optimizers and the
	// schedule. It runs before and after theirs, so that it may choose between them.
	defaults func(p *fed.Plan)
	// adjust changes defaults that depend on what the plan says; see setting.adjust.
	adjust func(p *fed.Plan, given func(path string) bool)
	// check reports combinations of settings that make no sense.
	check func(p *fed.Plan, wrong report)

	// gradients returns how many gradients a client takes for each local step.
	gradients func(p *fed.Plan) int
	// serverState counts what the aggregator keeps between merges.
	serverState vectors
	// clientOptimizer replaces the optimizer that the plan chooses.
	clientOptimizer func(k *kernel.Set, r clientopt.Rate) fed.ClientOptimizer
	// aggregator is the weighted mean if it is nil.
	aggregator func(p *fed.Plan) fed.Aggregator
	// trainer is plain descent if it is nil.
	trainer func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer
}

// vectors counts float64 vectors as long as the shared weights.
type vectors struct{ total, perClient int }

// report records that the setting at path is wrong.
type report func(path, format string, x ...any)

// anyOptimizer stands for a server optimizer that the plan chooses.
const anyOptimizer = "any"

// Values that several entries have in common.
var (
	allOptimizers      = []string{"adam", "sgd", "amsgrad", "prox", "proxadam"}
	plainOptimizers    = []string{"adam", "sgd", "amsgrad"}
	proximalOptimizers = []string{"proxadam", "prox"}

	byExamples = []string{"examples", "uniform"}
	byClients  = []string{"uniform", "examples"}
	uniform    = []string{"uniform"}

	synchronousOnly = []string{"synchronous"}
)

// perStep is the usual number of gradients: n for each step.
func perStep(n int) func(*fed.Plan) int { return func(*fed.Plan) int { return n } }

// song2021 sets how that paper compares algorithms: cohorts of 10, 5 local epochs, and
// 5 more before a client is scored. The paper does not state the number of rounds; 100
// is our choice.
func song2021(p *fed.Plan) {
	p.Rounds = 100
	p.Client.Steps, p.Client.Epochs = 0, 5
	p.Schedule.Cohort = 10
	p.Evaluate.Every = 5
	p.Evaluate.FineTune.Epochs = 5
}

// Summary describes an algorithm: its name, one sentence, and the source of the
// algorithm and of its defaults.
type Summary struct {
	Name, About, Paper string
	// Alone says that nothing travels.
	Alone bool
}

// Algorithms describes all algorithms.
func Algorithms() []Summary {
	var all []Summary
	for _, a := range algorithms {
		all = append(all, Summary{a.name, a.about, a.paper, a.noServer})
	}
	return all
}

// Names returns the names of all algorithms.
func Names() []string {
	var all []string
	for _, a := range algorithms {
		all = append(all, a.name)
	}
	return all
}

// Pooled reports whether a plan pools all readings in one client.
func Pooled(p *fed.Plan) bool {
	a := find(p.Algorithm)
	return a != nil && a.pooled
}

func find(name string) *algorithm {
	i := slices.IndexFunc(algorithms, func(a *algorithm) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return algorithms[i]
}
