// Package recipe is the registry of algorithms, under the names of their papers. Each
// algorithm has its entry in one file: settings and defaults, constructors of its parts,
// gradients per step, and the number of vectors that the server stores. The rest of the
// package works on entries and does not depend on any particular algorithm.
//
// [Read] reads a plan strictly, fills in the defaults of its algorithm, and reports all
// problems at once. The returned plan has a value for every setting, so it can be stored
// with a run ([Write]). From such a plan, [Compose] builds the parts of a server and its
// clients, and [Frame] builds the model and its examples.
package recipe

import (
	"regexp"
	"slices"

	"loadstar/fed"
	"loadstar/fed/clientopt"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

// algorithms is the registry, in the order of the documentation.
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

	// settings lists the settings of this algorithm, in addition to the settings that all
	// plans, the optimizers and the schedule have.
	settings []setting
	// optimizers lists the permitted client optimizers. The first is the default.
	optimizers []string
	// fullPass means that a turn is one pass over all examples, so the plan has neither steps
	// nor epochs.
	fullPass bool
	// noDecay means that an optimizer cannot shrink the trainer's personal weights, so the plan
	// has no weight decay.
	noDecay bool
	// averages means that the server sets the shared weights to the mean of the clients' weights
	// if its learning rate is 1. The server can then also average the moments of client
	// optimizers.
	averages bool
	// begins means that clients may begin a turn with their own shared weights. The
	// aggregator must treat an update as progress, not as the distance of the client's
	// weights from the server's.
	begins bool

	// serverOptimizer is the name of the server optimizer, anyOptimizer if the plan
	// chooses it, and empty if the aggregator needs none.
	serverOptimizer string
	// weightings lists the permitted values of server.weighting. The first is the default.
	weightings []string
	// schedules lists the permitted values of schedule.kind. The first is the default. If the
	// list is empty, the whole fleet trains in every round.
	schedules []string
	// mergesEach means that every update is merged on arrival, so the plan cannot set the
	// buffer size.
	mergesEach bool
	// noServer means that clients send nothing. pooled also means that there is only one
	// client, which has the readings of all meters.
	noServer, pooled bool
	// partition is the only permitted partition, or empty if all are permitted.
	partition string

	// plain is the reason why a plan cannot be private, worded to complete a sentence that
	// begins with the algorithm's name. It is empty if a plan can be private.
	plain string

	// defaults changes the defaults of settings, optimizers and schedule. It runs both
	// before and after the defaults of optimizers and schedule are set, so that it can
	// also choose the optimizers and the schedule.
	defaults func(p *fed.Plan)
	// adjust changes defaults that depend on the plan's settings; see setting.adjust.
	adjust func(p *fed.Plan, given func(path string) bool)
	// check reports invalid combinations of settings.
	check func(p *fed.Plan, wrong report)

	// gradients returns the number of gradients per local step.
	gradients func(p *fed.Plan) int
	// serverState counts the vectors that the aggregator stores between merges.
	serverState vectors
	// clientOptimizer replaces the optimizer that the plan chooses.
	clientOptimizer func(k *kernel.Set, r clientopt.Rate) fed.ClientOptimizer
	// aggregator builds the aggregator; nil means the weighted mean.
	aggregator func(p *fed.Plan) fed.Aggregator
	// trainer builds the local trainer; nil means plain descent.
	trainer func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer
}

// vectors is a number of float64 vectors, each as long as the shared weights: a fixed number in
// total, and a number per client.
type vectors struct{ total, perClient int }

// report records a mistake in the setting at path.
type report func(path, format string, x ...any)

// anyOptimizer means that the plan chooses the server optimizer.
const anyOptimizer = "any"

// Values that several entries share.
var (
	allOptimizers      = []string{"adam", "sgd", "amsgrad", "prox", "proxadam"}
	plainOptimizers    = []string{"adam", "sgd", "amsgrad"}
	proximalOptimizers = []string{"proxadam", "prox"}

	byExamples = []string{"examples", "uniform"}
	byClients  = []string{"uniform", "examples"}
	uniform    = []string{"uniform"}

	synchronousOnly = []string{"synchronous"}
)

// perStep returns a function that always returns n, for the field gradients.
func perStep(n int) func(*fed.Plan) int { return func(*fed.Plan) int { return n } }

// song2021 sets the defaults of that paper's comparison: cohorts of 10, 5 local epochs, and 5
// epochs of fine-tuning before a client is scored. The paper does not state the number of
// rounds; 100 is our choice.
func song2021(p *fed.Plan) {
	p.Rounds = 100
	p.Client.Steps, p.Client.Epochs = 0, 5
	p.Schedule.Cohort = 10
	p.Evaluate.Every = 5
	p.Evaluate.FineTune.Epochs = 5
}

// Summary describes an algorithm: its name, a short description, and the source of the
// algorithm and its defaults.
type Summary struct {
	Name, About, Source string
	// Papers lists the papers that Source cites.
	Papers []string
	// Alone is true if clients send nothing.
	Alone bool
}

// Algorithms returns a summary of every algorithm, in the order of the documentation.
func Algorithms() []Summary {
	var all []Summary
	for _, a := range algorithms {
		all = append(all, Summary{a.name, a.about, a.paper, cited(a.paper), a.noServer})
	}
	return all
}

// citation matches the name of a folder in papers, such as bose2023, or authors with a year.
var citation = regexp.MustCompile(`[a-z]+20\d\d|[A-Z]\w+ et al\. 20\d\d`)

// cited returns the papers that a source names, in the same order.
func cited(source string) []string {
	var all []string
	for _, c := range citation.FindAllString(source, -1) {
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
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

// Pooled reports whether a plan pools the readings of all meters in one client.
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
