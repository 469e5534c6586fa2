package recipe

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"loadstar/fed"
)

// key is a setting of a plan: what it is, and what it may be.
type key struct {
	path  string
	about string
	rule  rule
}

// rule is what a value must be. Choices among names are checked elsewhere: they
// depend on the algorithm.
type rule struct {
	say string
	ok  func(v float64) bool
}

var (
	anything = rule{}
	positive = rule{"above 0", func(v float64) bool { return v > 0 }}
	natural  = rule{"at least 1", func(v float64) bool { return v >= 1 }}
	zeroUp   = rule{"at least 0", func(v float64) bool { return v >= 0 }}
	share    = rule{"at least 0 and below 1", func(v float64) bool { return v >= 0 && v < 1 }}
	whole    = rule{"above 0 and at most 1", func(v float64) bool { return v > 0 && v <= 1 }}
	upToOne  = rule{"at least 0 and at most 1", func(v float64) bool { return v >= 0 && v <= 1 }}
)

// keys are all settings there are, in the order in which a plan is written.
var keys = []key{
	{"name", "what the run is called; by default as the algorithm", anything},
	{"seed", "behind every draw: weights, cohorts, batches, delays", anything},
	{"data", "a dataset for the simulator, relative to the working directory; a fleet has its own", anything},

	{"model.name", "the forecaster", anything},
	{"model.lookback", "steps of history in a window", natural},
	{"model.horizon", "steps from the last input to the first target", natural},
	{"model.targets", "how many steps are forecast from there on", natural},
	{"model.inputs", "numbers of each step; by default the paper's, as far as the dataset has them", anything},
	{"model.scaling", "client: each scales by its own range; fleet: all by one", anything},
	{"model.loss", "mse, mae, or pinball with quantiles", anything},
	{"model.quantiles", "what pinball forecasts, ascending, such as [0.1, 0.5, 0.9]", anything},
	{"model.split.train", "share of each client's span that trains", whole},
	{"model.split.validation", "share after it that validates; the rest tests", share},

	{"partition", "personal layers: none, head, head+top, all, or names separated by commas", anything},
	{"algorithm", "see loadstar plan list", anything},
	{"rounds", "how many rounds are opened; of a buffered schedule, how many merges", natural},

	{"client.optimizer", "what takes the steps", anything},
	{"client.lr", "learning rate", positive},
	{"client.beta1", "decay of the first moment", share},
	{"client.beta2", "decay of the second moment", share},
	{"client.epsilon", "added to the root of the second moment", positive},
	{"client.mu", "weight of the proximal term, mu/2 times the squared distance to the received weights", zeroUp},
	{"client.batch", "examples of a gradient", natural},
	{"client.steps", "gradient steps of a round, instead of epochs", zeroUp},
	{"client.epochs", "passes over the client's examples in a round, instead of steps", zeroUp},
	{"client.resample", "step: a fresh batch for each; round: one batch for all steps", anything},
	{"client.decay.factor", "what the learning rate is multiplied by", whole},
	{"client.decay.every", "every so many rounds; 0 is never", zeroUp},
	{"client.inner_lr", "rate of the look-ahead or inner step", positive},
	{"client.inner_steps", "inner steps for each step", natural},
	{"client.lambda", "how strongly the personal model is tied to the shared one", positive},
	{"client.delta", "distance over which gradients are compared", positive},

	{"server.optimizer", "what moves the shared weights", anything},
	{"server.lr", "learning rate", positive},
	{"server.beta1", "decay of the momentum", share},
	{"server.beta2", "decay of the second moment", share},
	{"server.tau", "adaptivity: added to the root of the second moment", positive},
	{"server.epsilon", "added to the root of the second moment", positive},
	{"server.dampening", "the new update counts 1 - dampening: 0 in reddi2021; in bose2023 as beta1, the default", upToOne},
	{"server.second_moment", "what is squared: update (bose2023) or momentum (the letter of reddi2021)", anything},
	{"server.weighting", "examples: by how many a client has; uniform: all alike", anything},
	{"server.alpha", "how far to move towards a fresh client", whole},
	{"server.discount", "what staleness t costs: constant, polynomial (1+t)^-a, or hinge 1/(a(t-b)+1) beyond b", anything},
	{"server.exponent", "a of the discount", zeroUp},
	{"server.hinge", "b of the hinge: staleness that costs nothing", zeroUp},
	{"server.peak", "height of the curve over lambda", anything},
	{"server.delta", "distance over which server gradients are compared", positive},
	{"server.beta", "step of the correction by the meta-gradient", zeroUp},
	{"server.beta_decay", "whether beta falls to 0 over the rounds", anything},
	{"server.variant", "what is left out", anything},
	{"server.clients", "share of the clients whose data the server has; they do not train", share},
	{"server.batch", "examples of theirs in a round", natural},
	{"server.bound", "an update with a coordinate beyond it is refused", positive},
	{"server.max_examples", "the most that an update can weigh", natural},

	{"schedule.kind", "when updates are merged", anything},
	{"schedule.cohort", "clients of a round, or running at a time; 0 is the whole fleet", zeroUp},
	{"schedule.over_selection", "ask that share more than the cohort", zeroUp},
	{"schedule.quorum", "share of the cohort without which a round is abandoned at its deadline", upToOne},
	{"schedule.deadline", "how long a round waits; 0s is for ever", anything},
	{"schedule.buffer", "updates merged together", natural},
	{"schedule.period", "time between merges of what has arrived", positive},

	{"evaluate.every", "score a sample of validation windows every so many rounds; 0 is never", zeroUp},
	{"evaluate.clients", "at most so many clients in the sample", natural},
	{"evaluate.windows", "at most so many windows of each", natural},
	{"evaluate.forecasts", "of how many clients all forecasts are written in the end", zeroUp},
	{"evaluate.holdout", "share of clients that do not train, and alone are scored in the end", share},
	{"evaluate.fine_tune.steps", "local steps before a client is scored in the end", zeroUp},
	{"evaluate.fine_tune.epochs", "or passes over its examples", zeroUp},
	{"evaluate.fine_tune.lr", "their learning rate; 0 is the client's", zeroUp},

	{"simulate.step_time", "how long a client of speed 1 takes for a gradient step", anything},
	{"simulate.speed_spread", "spread of the log-normal speeds", zeroUp},
	{"simulate.link", "bytes per second both ways; 0 is infinitely fast", zeroUp},
	{"simulate.link_spread", "spread of the log-normal links", zeroUp},
	{"simulate.latency", "added to every exchange", anything},
	{"simulate.dropout", "probability that a client that was asked never returns", share},
	{"simulate.delay", "fekri2023 replaces the times above: a client returns in this period or a later one", anything},
	{"simulate.delayed", "the probability of each period more", share},
}

func keyOf(path string) *key {
	i := slices.IndexFunc(keys, func(k key) bool { return k.path == path })
	if i < 0 {
		return nil
	}
	return &keys[i]
}

// field returns a setting of a plan.
func field(p *fed.Plan, path string) reflect.Value {
	v := reflect.ValueOf(p).Elem()
	for name := range strings.SplitSeq(path, ".") {
		t, i := v.Type(), 0
		for tag := ""; tag != name; i++ {
			tag, _, _ = strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		}
		v = v.Field(i - 1)
	}
	return v
}

// number returns a numeric setting's value.
func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

// keysOf returns the settings that a plan has, given the choices in it: its
// algorithm, optimizers, discount, schedule, loss.
func keysOf(a *algorithm, p *fed.Plan) []string {
	has := []string{
		"name", "seed", "data", "partition", "algorithm", "rounds",
		"model.name", "model.lookback", "model.horizon", "model.targets", "model.inputs", "model.scaling", "model.loss",
		"model.split.train", "model.split.validation",
		"evaluate.every", "evaluate.clients", "evaluate.windows", "evaluate.forecasts",
		"evaluate.fine_tune.steps", "evaluate.fine_tune.epochs", "evaluate.fine_tune.lr",
	}
	add := func(section string, names string) {
		for n := range strings.FieldsSeq(names) {
			has = append(has, section+"."+n)
		}
	}
	if p.Model.Loss == "pinball" {
		add("model", "quantiles")
	}
	if !a.alone {
		add("evaluate", "holdout")
	}

	add("client", a.client)
	if a.optimizers != nil {
		add("client", "optimizer "+optimizerKeys(clientOptimizers, p.Client.Optimizer))
	}
	if a.works {
		add("client", "batch steps epochs decay.factor decay.every")
		if p.Client.Epochs == 0 {
			add("client", "resample")
		}
	}

	add("server", a.server)
	if a.behind == "any" {
		add("server", "optimizer "+optimizerKeys(serverOptimizers, p.Server.Optimizer))
	} else if a.behind != "" {
		add("server", optimizerKeys(serverOptimizers, a.behind))
	}
	if a.discounts {
		add("server", "discount")
		if p.Server.Discount != "constant" {
			add("server", "exponent")
		}
		if p.Server.Discount == "hinge" {
			add("server", "hinge")
		}
	}
	if !a.alone {
		add("server", "bound")
		if len(a.weightings) > 1 {
			add("server", "weighting")
		}
		if p.Server.Weighting == "examples" {
			add("server", "max_examples")
		}
	}

	if a.kinds != nil {
		add("schedule", "kind cohort")
		switch p.Schedule.Kind {
		case "synchronous":
			add("schedule", "over_selection quorum deadline")
		case "buffered":
			if !a.eager {
				add("schedule", "buffer")
			}
		case "periodic":
			add("schedule", "period")
		}
		if p.Simulate.Delay == "" {
			add("simulate", "step_time speed_spread link link_spread latency dropout delay")
		} else {
			add("simulate", "dropout delay delayed")
		}
	}
	return has
}

// optimizerKeys returns the settings of the named optimizer, or of all of them if
// there is none of that name, so that one mistake is not reported as many.
func optimizerKeys(all []choice, name string) string {
	var every []string
	for _, o := range all {
		if o.name == name {
			return o.keys
		}
		every = append(every, o.keys)
	}
	return strings.Join(every, " ")
}

// section names the choices that decide which settings a part of a plan has.
func section(a *algorithm, p *fed.Plan, path string) (name, of string) {
	name, _, _ = strings.Cut(path, ".")
	of = a.name
	switch {
	case name == "client" && strings.HasSuffix(path, ".resample") && a.works:
		of += " with epochs"
	case name == "client" && len(a.optimizers) > 1:
		of += " with client.optimizer " + p.Client.Optimizer
	case name == "server" && a.behind == "any":
		of += " with server.optimizer " + p.Server.Optimizer
	case name == "server" && strings.HasSuffix(path, ".max_examples") && len(a.weightings) > 1:
		of += " with server.weighting " + p.Server.Weighting
	case name == "schedule" && a.kinds != nil:
		of += " with a " + p.Schedule.Kind + " schedule"
	case name == "simulate" && a.kinds != nil && p.Simulate.Delay != "":
		of += " with simulate.delay " + p.Simulate.Delay
	case name == "model":
		of = fmt.Sprintf("model.loss %s", p.Model.Loss)
	}
	return name, of
}
