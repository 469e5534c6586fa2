package recipe

import (
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/forecast"
)

// Settings that are not specific to one algorithm, optimizer or schedule have the defaults of
// bose2023.

var planSettings = []setting{
	{path: "name", about: "name of the run; by default the name of the algorithm"},
	{path: "seed", about: "determines all random choices: weights, cohorts, batches, delays", initial: 1},
	{path: "partition", about: "personal layers: none, head, head+top, correction, all, or layer names separated by commas", initial: forecast.PartitionNone},
	{path: "algorithm", about: "name of the algorithm; see loadstar plan list"},
	{path: "start", about: "shared weights to start from: a .safetensors file or the folder of a run (simulator only), or server-data for weights trained on the server's data (song2021); by default random weights", quiet: true},
	{path: "rounds", about: "number of rounds, or of merges in a buffered schedule", initial: 2000, must: atLeastOne},
}

// modelSettings returns the settings of the forecasting model. For some models,
// modelDefaults replaces the defaults given here.
func modelSettings() []setting {
	var models []string
	for _, m := range forecast.Models() {
		models = append(models, m.Name)
	}
	return []setting{
		{path: "model.name", about: "forecasting model", initial: "bose2023", choices: models},
		{path: "model.lookback", about: "steps or duration of history in a window", initial: fed.Steps(12), must: atLeastOne},
		{path: "model.horizon", about: "steps or duration from the last input to the first target", initial: fed.Steps(1), must: atLeastOne},
		{path: "model.targets", about: "what to forecast: a duration such as 24h, or a number of consecutive steps", initial: fed.Steps(1), must: atLeastOne},
		{path: "model.interval", about: "time between readings; a run sets it to the interval of its data; 0s means any interval", quiet: true},
		{path: "model.inputs", about: "inputs of each step; by default the inputs from the model's paper that the dataset has"},
		{
			path: "model.scaling", about: "client: each client has its own range; fleet: one range for all",
			initial: "client", choices: []string{"client", "fleet"},
		},
		{path: "model.loss", about: "mse, mae, or pinball with quantiles", initial: "mse", choices: []string{"mse", "mae", "pinball"}},
		{
			path: "model.quantiles", about: "quantiles for pinball, ascending, such as [0.1, 0.5, 0.9]",
			when: func(p *fed.Plan) bool { return p.Model.Loss == "pinball" },
		},
		{path: "model.split.train", about: "share of each client's time span for training", initial: 0.8, must: positiveShare},
		{path: "model.split.validation", about: "share of each client's time span for validation, after the training share; the rest is for testing", initial: 0.1, must: belowOne},
	}
}

var clientBatch = setting{path: "client.batch", about: "examples per gradient", initial: 64, must: atLeastOne}

// workSettings lists the settings for how much a client trains in a round, and on which
// examples.
var workSettings = []setting{
	{
		path: "client.steps", about: "gradient steps per round, instead of epochs", initial: 4, must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("client.epochs") {
				p.Client.Steps = 0
			}
		},
	},
	{
		path: "client.epochs", about: "passes over the client's examples per round, instead of steps", must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("client.steps") {
				p.Client.Epochs = 0
			}
		},
	},
	{
		path: "client.resample", about: "step: a new batch for each step; round: one batch for all steps",
		initial: "step", choices: []string{"step", "round"},
		when: func(p *fed.Plan) bool { return p.Client.Epochs == 0 },
	},
	{path: "client.decay.factor", about: "factor of each decay of the learning rate", initial: 1, must: positiveShare},
	{path: "client.decay.every", about: "rounds between two decays; 0 means no decay", must: nonNegative},
	{
		path: "client.lr_end", about: "learning rate at the end of the run, reached along a cosine over all steps; 0 means no cosine",
		must: nonNegative, quiet: true,
	},
	{path: "client.warmup", about: "steps at the start of the run over which the learning rate rises", must: nonNegative, quiet: true},
}

// weightDecaySettings lists the settings of decoupled weight decay.
var weightDecaySettings = []setting{
	{path: "client.weight_decay.all", about: "every step shrinks all weights by the learning rate times this value", must: nonNegative, quiet: true},
	{
		path: "client.weight_decay.correction", about: "every step shrinks the correction layers by the learning rate times this value times the square of the client's noise",
		must: nonNegative, quiet: true,
	},
}

// Settings of plans in which clients send updates to a server.
var (
	serverWeighting = setting{
		path: "server.weighting", about: "examples: by the client's number of examples; uniform: all clients equal",
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if Trims(p) {
				p.Server.Weighting = "uniform"
			}
		},
	}
	serverClip = setting{
		path:    "server.clip",
		about:   "updates whose norm is above this multiple of the median norm of earlier updates are scaled down to it, and reported examples and losses are limited; 0 means no limits",
		initial: 1.5, must: nonNegative, quiet: true,
	}
	serverCoordinate = setting{
		path:    "server.coordinate",
		about:   "numbers of an update beyond this multiple of learning rate times steps are set to this limit; 0, or clip 0, means no limit",
		initial: usualCoordinate, must: nonNegative, quiet: true,
		when: coordinatesBounded,
	}
	serverRobust = setting{
		path:    "server.robust",
		about:   "none: the mean of updates; trim: the mean without the largest and the smallest fifth of each coordinate, for which the server needs each update; nearest: in a private plan, the mean of the three quarters of the results that are nearest to the median, chosen by the keepers",
		initial: "none", choices: []string{"none", robustTrim, robustNearest}, quiet: true,
	}
	serverBound = setting{path: "server.bound", about: "updates with a number above this magnitude are rejected", initial: 16, must: positive}
	maxExamples = setting{
		path: "server.max_examples", about: "maximum weight of an update", initial: 65536, must: atLeastOne,
		when: func(p *fed.Plan) bool { return p.Server.Weighting == "examples" },
	}
	sample = setting{
		path: "evaluate.sample", about: "clients whose validation windows are scored during training; trained: clients that train, without fine-tuning; holdout: held-out clients, each after fine-tuning a copy of the weights (simulator only)",
		initial: "trained", choices: []string{"trained", "holdout"}, quiet: true,
		when: func(p *fed.Plan) bool { return p.Evaluate.Holdout > 0 },
	}
	holdout = setting{path: "evaluate.holdout", about: "share of clients that do not train; only they are scored at the end", must: belowOne}
)

var evaluateSettings = []setting{
	{
		path: "evaluate.every", about: "rounds between two scorings of a sample of validation windows; 0 means never", initial: 100, must: nonNegative,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if p.Model.Split.Validation == 0 {
				p.Evaluate.Every = 0
			}
		},
	},
	{
		path: "evaluate.patience", about: "the simulator ends a run after this number of rounds without a new lowest validation loss; 0 means never",
		must: nonNegative, quiet: true,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if p.Evaluate.Every == 0 {
				p.Evaluate.Patience = 0
			}
		},
	},
	{path: "evaluate.clients", about: "maximum number of clients in the sample", initial: 100, must: atLeastOne},
	{path: "evaluate.windows", about: "maximum number of windows per client", initial: 256, must: atLeastOne},
	{path: "evaluate.forecasts", about: "number of clients whose test forecasts are written at the end", initial: 4, must: nonNegative},
	{
		path: "evaluate.reference", about: "forecast to which the relative MAE refers; auto: last-value if only the next step is forecast, otherwise last-week",
		initial: string(forecast.Auto), choices: []string{string(forecast.Auto), string(forecast.LastValue), string(forecast.LastDay), string(forecast.LastWeek)},
	},
	{
		path: "evaluate.correct", about: "correct test forecasts by their latest errors, as clients do; by default only for model dense",
		adjust: func(p *fed.Plan, _ func(string) bool) { p.Evaluate.Correct = p.Model.Name == "dense" },
	},
	{
		path: "evaluate.fine_tune.steps", about: "local steps before a client is scored at the end", must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("evaluate.fine_tune.epochs") {
				p.Evaluate.FineTune.Steps = 0
			}
		},
	},
	{
		path: "evaluate.fine_tune.epochs", about: "passes over the client's examples, instead of steps", must: nonNegative,
		adjust: func(p *fed.Plan, given func(string) bool) {
			if given("evaluate.fine_tune.steps") {
				p.Evaluate.FineTune.Epochs = 0
			}
		},
	},
	{
		path: "evaluate.fine_tune.lr", about: "learning rate of fine-tuning; 0 means client.lr", must: nonNegative,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if f := &p.Evaluate.FineTune; f.Steps == 0 && f.Epochs == 0 {
				f.Rate = 0
			}
		},
	},
	{
		path: "evaluate.fine_tune.choose", about: "last: the weights after fine-tuning; validation: the weights between the start and the end of fine-tuning with the client's lowest validation error; the default is validation with evaluate.keep best",
		initial: "last", choices: []string{"last", "validation"}, quiet: true,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			e := &p.Evaluate
			tunes := e.FineTune.Steps > 0 || e.FineTune.Epochs > 0
			switch {
			case p.Model.Split.Validation == 0: // there are no scores for the choice
				e.FineTune.Choose = "last"
			case e.Keep == "best": // without a choice, the best weights would have no effect
				e.FineTune.Choose = "validation"
			case !tunes: // there are no candidates to choose from
				e.FineTune.Choose = "last"
			}
		},
	},
	{
		path: "evaluate.keep", about: "last: no earlier weights; best: each client can also choose its weights with the lowest validation error of all evaluations",
		initial: "last", choices: []string{"last", "best"}, quiet: true,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if p.Evaluate.Every == 0 || p.Evaluate.FineTune.Choose != "validation" {
				p.Evaluate.Keep = "last"
			}
		},
	},
}

// simulateSettings lists the settings of simulated clients. If simulate.delay is set, its
// delays replace the times for training and transfers.
var simulateSettings = []setting{
	setting{path: "simulate.step_time", about: "time of a gradient step on a client of speed 1"}.only(timed),
	setting{path: "simulate.speed_spread", about: "spread of the log-normal client speeds", must: nonNegative}.only(timed),
	setting{path: "simulate.link", about: "bytes per second in each direction; 0 means infinite", must: nonNegative}.only(timed),
	setting{path: "simulate.link_spread", about: "spread of the log-normal link speeds", must: nonNegative}.only(timed),
	setting{path: "simulate.latency", about: "time added to every transfer"}.only(timed),
	{path: "simulate.dropout", about: "probability that a client returns no update in a turn", must: belowOne},
	{
		path: "simulate.delay", about: "fekri2023: a client returns in this period or a later one, whatever the times above are",
		choices: []string{"", "fekri2023"},
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if p.Schedule.Kind != "periodic" {
				p.Simulate.Delay = ""
			}
		},
	},
	{
		path: "simulate.delayed", about: "probability of each further period", initial: 0.5, must: belowOne,
		when: func(p *fed.Plan) bool { return p.Simulate.Delay != "" },
	},
}

func timed(p *fed.Plan) bool { return p.Simulate.Delay == "" }

// modelDefaults sets the defaults that the model's paper states.
func (a *algorithm) modelDefaults(p, chosen *fed.Plan) {
	d, ok := forecast.DefaultsOf(p.Model.Name)
	if !ok {
		return
	}
	p.Model.Lookback, p.Model.Horizon, p.Model.Targets = fed.Steps(d.Lookback), fed.Steps(d.Horizon), fed.Steps(d.Targets)
	if d.Rows {
		p.Model.Lookback = fed.Lasting(time.Duration(d.Lookback) * time.Hour)
	}
	p.Model.Split = fed.Split{Train: d.Train, Validation: d.Validation}
	p.Model.Quantiles = slices.Clone(d.Quantiles)
	if d.Rows {
		a.denseDefaults(p, chosen)
	}
}
