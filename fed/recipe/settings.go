package recipe

import (
	"loadstar/fed"
	"loadstar/forecast"
)

// The settings that do not belong to one algorithm, optimizer or schedule. Their
// defaults are those of bose2023.

var planSettings = []setting{
	{path: "name", about: "what the run is called; by default as the algorithm"},
	{path: "seed", about: "behind every draw: weights, cohorts, batches, delays", initial: 1},
	{path: "data", about: "a dataset for the simulator, relative to the working directory; a fleet has its own"},
	{path: "partition", about: "personal layers: none, head, head+top, all, or names separated by commas", initial: forecast.PartitionNone},
	{path: "algorithm", about: "see loadstar plan list"},
	{path: "rounds", about: "how many rounds are opened; of a buffered schedule, how many merges", initial: 2000, must: atLeastOne},
}

// modelSettings are those of the forecaster; modelDefaults replaces their defaults.
func modelSettings() []setting {
	var models []string
	for _, m := range forecast.Models() {
		models = append(models, m.Name)
	}
	return []setting{
		{path: "model.name", about: "the forecaster", initial: "bose2023", choices: models},
		{path: "model.lookback", about: "steps of history in a window", initial: 12, must: atLeastOne},
		{path: "model.horizon", about: "steps from the last input to the first target", initial: 1, must: atLeastOne},
		{path: "model.targets", about: "how many steps are forecast from there on", initial: 1, must: atLeastOne},
		{path: "model.inputs", about: "numbers of each step; by default the paper's, as far as the dataset has them"},
		{
			path: "model.scaling", about: "client: each scales by its own range; fleet: all by one",
			initial: "client", choices: []string{"client", "fleet"},
		},
		{path: "model.loss", about: "mse, mae, or pinball with quantiles", initial: "mse", choices: []string{"mse", "mae", "pinball"}},
		{
			path: "model.quantiles", about: "what pinball forecasts, ascending, such as [0.1, 0.5, 0.9]",
			when: func(p *fed.Plan) bool { return p.Model.Loss == "pinball" },
		},
		{path: "model.split.train", about: "share of each client's span that trains", initial: 0.8, must: positiveShare},
		{path: "model.split.validation", about: "share after it that validates; the rest tests", initial: 0.1, must: belowOne},
	}
}

var clientBatch = setting{path: "client.batch", about: "examples of a gradient", initial: 64, must: atLeastOne}

// workSettings are those of a client's work in a round.
var workSettings = []setting{
	{
		path: "client.steps", about: "gradient steps of a round, instead of epochs", initial: 4, must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("client.epochs") {
				p.Client.Steps = 0
			}
		},
	},
	{
		path: "client.epochs", about: "passes over the client's examples in a round, instead of steps", must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("client.steps") {
				p.Client.Epochs = 0
			}
		},
	},
	{
		path: "client.resample", about: "step: a fresh batch for each; round: one batch for all steps",
		initial: "step", choices: []string{"step", "round"},
		when: func(p *fed.Plan) bool { return p.Client.Epochs == 0 },
	},
	{path: "client.decay.factor", about: "what the learning rate is multiplied by", initial: 1, must: positiveShare},
	{path: "client.decay.every", about: "every so many rounds; 0 is never", must: nonNegative},
}

// Settings of a server.
var (
	serverWeighting = setting{path: "server.weighting", about: "examples: by how many a client has; uniform: all alike"}
	serverBound     = setting{path: "server.bound", about: "an update with a coordinate beyond it is refused", initial: 16, must: positive}
	maxExamples     = setting{
		path: "server.max_examples", about: "the most that an update can weigh", initial: 65536, must: atLeastOne,
		when: func(p *fed.Plan) bool { return p.Server.Weighting == "examples" },
	}
	holdout = setting{path: "evaluate.holdout", about: "share of clients that do not train, and alone are scored in the end", must: belowOne}
)

var evaluateSettings = []setting{
	{
		path: "evaluate.every", about: "score a sample of validation windows every so many rounds; 0 is never", initial: 100, must: nonNegative,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if p.Model.Split.Validation == 0 {
				p.Evaluate.Every = 0
			}
		},
	},
	{path: "evaluate.clients", about: "at most so many clients in the sample", initial: 100, must: atLeastOne},
	{path: "evaluate.windows", about: "at most so many windows of each", initial: 256, must: atLeastOne},
	{path: "evaluate.forecasts", about: "of how many clients all forecasts are written in the end", initial: 4, must: nonNegative},
	{
		path: "evaluate.fine_tune.steps", about: "local steps before a client is scored in the end", must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("evaluate.fine_tune.epochs") {
				p.Evaluate.FineTune.Steps = 0
			}
		},
	},
	{
		path: "evaluate.fine_tune.epochs", about: "or passes over its examples", must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("evaluate.fine_tune.steps") {
				p.Evaluate.FineTune.Epochs = 0
			}
		},
	},
	{path: "evaluate.fine_tune.lr", about: "their learning rate; 0 is the client's", must: nonNegative},
}

// simulateSettings are those of the simulator's clients. A delay replaces the times
// that speeds and links take.
var simulateSettings = []setting{
	setting{path: "simulate.step_time", about: "how long a client of speed 1 takes for a gradient step"}.only(timed),
	setting{path: "simulate.speed_spread", about: "spread of the log-normal speeds", must: nonNegative}.only(timed),
	setting{path: "simulate.link", about: "bytes per second both ways; 0 is infinitely fast", must: nonNegative}.only(timed),
	setting{path: "simulate.link_spread", about: "spread of the log-normal links", must: nonNegative}.only(timed),
	setting{path: "simulate.latency", about: "added to every exchange"}.only(timed),
	{path: "simulate.dropout", about: "probability that a client that was asked never returns", must: belowOne},
	{
		path: "simulate.delay", about: "fekri2023 replaces the times above: a client returns in this period or a later one",
		choices: []string{"", "fekri2023"},
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if p.Schedule.Kind != "periodic" {
				p.Simulate.Delay = ""
			}
		},
	},
	{
		path: "simulate.delayed", about: "the probability of each period more", initial: 0.5, must: belowOne,
		when: func(p *fed.Plan) bool { return p.Simulate.Delay != "" },
	},
}

func timed(p *fed.Plan) bool { return p.Simulate.Delay == "" }

// modelDefaults sets the defaults that the model's paper states.
func modelDefaults(p *fed.Plan) {
	if d, ok := forecast.DefaultsOf(p.Model.Name); ok {
		p.Model.Lookback, p.Model.Horizon, p.Model.Targets = d.Lookback, d.Horizon, d.Targets
		p.Model.Split = fed.Split{Train: d.Train, Validation: d.Validation}
	}
}
