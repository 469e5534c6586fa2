package recipe

import (
	"time"

	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/localtrain"
	"loadstar/nn/kernel"
)

var (
	anyOptimizer   = []string{"adam", "sgd", "amsgrad", "prox", "proxadam"}
	plainOptimizer = []string{"adam", "sgd", "amsgrad"}
	proximal       = []string{"proxadam", "prox"}
	synchronous    = []string{"synchronous"}
	byExamples     = []string{"examples", "uniform"}
	byClients      = []string{"uniform", "examples"}
	alike          = []string{"uniform"}
)

// house sets what a plan is unless its algorithm, model or optimizers say otherwise:
// the values of bose2023. Those of settings that a plan does not have are taken out
// again in the end.
func house(p *fed.Plan) {
	p.Seed = 1
	p.Model = fed.Model{Name: "bose2023", Scaling: "client", Loss: "mse"}
	p.Partition = "none"
	p.Rounds = 2000
	p.Client = fed.Client{
		Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, Mu: 0.01,
		Batch: 64, Steps: 4, Resample: "step", Decay: fed.Decay{Factor: 1},
		Inner: 0.001, InnerSteps: 5, Lambda: 15, Delta: 0.1,
	}
	p.Server = fed.Server{
		Optimizer: "fedavg", Rate: 1, Tau: 1e-3, Epsilon: 1e-3, SecondMoment: "update",
		Alpha: 0.6, Discount: "polynomial", Exponent: 0.5, Hinge: 4,
		Peak: "1", Delta: 0.25, Beta: 0.25, BetaDecay: true, Variant: "full", Clients: 0.05, Batch: 64,
		Bound: 16, MaxExamples: 65536,
	}
	p.Schedule = fed.Schedule{Buffer: 10, Period: fed.Duration(time.Hour)}
	p.Evaluate = fed.Evaluate{Every: 100, Clients: 100, Windows: 256, Forecasts: 4}
	p.Simulate = fed.Simulate{Delayed: 0.5}
}

// ofModel sets what the model's paper says.
func ofModel(p *fed.Plan) {
	m := &p.Model
	m.Lookback, m.Horizon, m.Targets = 12, 1, 1
	m.Split = fed.Split{Train: 0.8, Validation: 0.1}
	switch m.Name {
	case "bose2024":
		m.Horizon = 4
	case "fekri2023":
		m.Lookback, m.Targets = 24, 8
		m.Split = fed.Split{Train: 0.7} // and no validation part
	}
}

// asSong2021 sets how that paper compares: cohorts of 10, 5 local epochs, as many
// before a client is scored. It does not say how many rounds; 100 are ours.
func asSong2021(p *fed.Plan) {
	p.Rounds = 100
	p.Client.Steps, p.Client.Epochs = 0, 5
	p.Schedule.Cohort = 10
	p.Evaluate.Every = 5
	p.Evaluate.FineTune.Epochs = 5
}

var algorithms = []algorithm{
	{
		name:       "fedavg",
		about:      "the server moves to the weighted mean of the clients' models",
		paper:      "McMahan et al. 2017; bose2023, which the defaults are from",
		optimizers: anyOptimizer, works: true,
		behind: "fedavg", weightings: byExamples,
		kinds: synchronous,
	},
	{
		name:       "fedprox",
		about:      "fedavg whose clients are held near the received weights by a proximal term",
		paper:      "Li et al. 2020; bose2024, whose alpha is mu/2; mu is ours, as neither says one",
		optimizers: proximal, works: true,
		behind: "fedavg", weightings: byExamples,
		kinds: synchronous,
	},
	{
		name:       "fedavgm",
		about:      "fedavg with momentum on the server",
		paper:      "bose2023 (FedAvgMomentum), which the defaults are from; with dampening 0, reddi2021",
		optimizers: anyOptimizer, works: true,
		behind: "fedavgm", weightings: byExamples,
		kinds: synchronous,
	},
	{
		name:       "fedadagrad",
		about:      "the server scales each coordinate by the sum of its squared updates",
		paper:      "reddi2021, which beta1 and tau are from; it tunes lr, 0.03 is ours",
		optimizers: anyOptimizer, works: true,
		behind: "fedadagrad", weightings: byExamples,
		kinds: synchronous,
	},
	{
		name:       "fedadam",
		about:      "the server runs Adam on the mean update",
		paper:      "reddi2021, which tau is from; bose2023, which lr, beta1 and beta2 are from",
		optimizers: anyOptimizer, works: true,
		behind: "fedadam", weightings: byExamples,
		kinds: synchronous,
	},
	{
		name:       "fedyogi",
		about:      "fedadam whose second moment grows and shrinks by steps that its own size does not scale",
		paper:      "reddi2021, which beta1, beta2 and tau are from; it tunes lr, 0.01 is bose2023's of fedadam",
		optimizers: anyOptimizer, works: true,
		behind: "fedyogi", weightings: byExamples,
		kinds: synchronous,
	},
	{
		name:       "fedavgadaptive",
		about:      "the server scales each client's update by that client's own second moment",
		paper:      "bose2024; it states no values, these are ours",
		optimizers: anyOptimizer, works: true,
		server: "lr beta1 epsilon", weightings: alike,
		kinds: synchronous,
		set:   func(p *fed.Plan) { p.Server.Rate, p.Server.Beta1 = 0.001, 0.9 },
		aggregator: func(p *fed.Plan) fed.Aggregator {
			return &aggregate.PerClient{Beta1: p.Server.Beta1, Epsilon: p.Server.Epsilon}
		},
	},
	{
		name:       "scaffold",
		about:      "control variates take the drift of each client out of its steps",
		paper:      "Karimireddy et al. 2020; reddi2021, algorithm 6, option II; it tunes client.lr, 0.1 is ours",
		optimizers: []string{"sgd"}, works: true,
		behind: "fedavg", weightings: byClients,
		kinds:      synchronous,
		aggregator: func(*fed.Plan) fed.Aggregator { return &aggregate.Scaffold{} },
	},
	{
		name:       "fedsgd",
		about:      "each client sends one gradient over all its examples, and the server takes one step",
		paper:      "McMahan et al. 2017; lr is ours; client.lr is that of personal layers",
		client:     "batch",
		optimizers: []string{"sgd"},
		behind:     "fedavg", weightings: byExamples,
		kinds: synchronous,
		set:   func(p *fed.Plan) { p.Server.Rate = 0.3 },
		trainer: func(p *fed.Plan, _ *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
			return &localtrain.Gradient{Batch: w.Batch, Optimizer: o}
		},
	},
	{
		name:       "fedasync",
		about:      "each update is merged as it arrives, the less the staler it is",
		paper:      "Xie et al. 2019, which alpha, exponent and hinge are from; fekri2023",
		optimizers: []string{"proxadam", "prox", "adam", "sgd", "amsgrad"}, works: true,
		server: "alpha", discounts: true, weightings: alike,
		kinds: []string{"buffered"}, eager: true,
		// Without times everybody would return at once, and be mixed in one merge.
		set: func(p *fed.Plan) {
			p.Schedule.Buffer = 1
			p.Simulate.StepTime, p.Simulate.SpeedSpread = fed.Duration(20*time.Millisecond), 0.5
		},
		aggregator: func(p *fed.Plan) fed.Aggregator {
			return aggregate.Async{Alpha: p.Server.Alpha, Discount: discount(p)}
		},
	},
	{
		name:       "fedbuff",
		about:      "updates are merged by the bufferful, discounted by staleness, behind any server optimizer",
		paper:      "Nguyen et al. 2022, which the buffer of 10 and the discount are from",
		optimizers: anyOptimizer, works: true,
		behind: "any", discounts: true, weightings: byExamples,
		kinds:      []string{"buffered", "periodic"},
		aggregator: func(p *fed.Plan) fed.Aggregator { return aggregate.Buffered{Discount: discount(p)} },
	},
	{
		name:       "fednorm",
		about:      "updates that arrived in a period are weighted by a bell curve over distance and loss",
		paper:      "fekri2023, which model and cohort are from; epochs, rounds and the period are ours",
		optimizers: anyOptimizer, works: true,
		server: "peak", behind: "any", weightings: byClients,
		kinds: []string{"periodic", "synchronous", "buffered"},
		set: func(p *fed.Plan) {
			p.Model.Name = "fekri2023"
			p.Rounds = 20
			p.Client.Steps, p.Client.Epochs = 0, 1
			p.Schedule.Cohort, p.Schedule.Buffer = 9, 9
			p.Evaluate.Every = 1
			p.Simulate.Delay = "fekri2023"
		},
		aggregator: func(p *fed.Plan) fed.Aggregator {
			return aggregate.FedNorm{PeakMaxLambda: p.Server.Peak == "max-lambda", ByExamples: p.Server.Weighting == "examples"}
		},
	},
	{
		name:       "fedsim",
		about:      "the server corrects each client's model by a meta-gradient on data of its own",
		paper:      "song2021",
		optimizers: proximal, works: true,
		server: "delta beta beta_decay variant clients batch", behind: "any", weightings: alike,
		kinds: synchronous,
		set: func(p *fed.Plan) {
			asSong2021(p)
			p.Client.Mu = 1
		},
		aggregator: func(p *fed.Plan) fed.Aggregator {
			a := aggregate.FedSIM{
				Delta: p.Server.Delta, Beta: p.Server.Beta,
				ServerGradient: p.Server.Variant == "server-gradient", FirstOrder: p.Server.Variant == "first-order",
			}
			if p.Server.BetaDecay {
				a.Rounds = p.Rounds
			}
			return a
		},
	},
	{
		name:   "perfedavg",
		about:  "clients train for the loss after one more step of their own, in first order",
		paper:  "Fallah et al. 2020 (FO); as song2021 compares it; inner_lr is ours: much larger, and gradients point uphill",
		client: "inner_lr", optimizers: plainOptimizer, works: true,
		behind: "fedavg", weightings: byClients,
		kinds: synchronous,
		set:   asSong2021,
		trainer: func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
			return &localtrain.PerFedAvg{Work: w, Kernel: k, Inner: p.Client.Inner, Optimizer: o}
		},
	},
	{
		name:   "fedmeta",
		about:  "clients train for the loss after one more step of their own, with a difference of gradients for the Hessian",
		paper:  "Chen et al. 2018; Fallah et al. 2020 (HF); as song2021 compares it; delta and inner_lr are ours",
		client: "inner_lr delta", optimizers: plainOptimizer, works: true,
		behind: "fedavg", weightings: byClients,
		kinds: synchronous,
		set:   asSong2021,
		trainer: func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
			return &localtrain.FedMeta{Work: w, Kernel: k, Inner: p.Client.Inner, Delta: p.Client.Delta, Optimizer: o}
		},
	},
	{
		name:   "pfedme",
		about:  "each client keeps a personal model near the shared one, and moves the shared one towards it",
		paper:  "Dinh et al. 2020, which lambda, steps, inner_steps and lr are from; inner_lr is ours; as song2021 compares it",
		client: "inner_lr inner_steps lambda", optimizers: []string{"sgd", "adam", "amsgrad"}, works: true,
		behind: "fedavg", weightings: byClients,
		kinds: synchronous,
		set: func(p *fed.Plan) {
			asSong2021(p)
			p.Client.Epochs, p.Client.Steps, p.Client.Inner = 0, 20, 0.01
			if p.Client.Optimizer == "sgd" {
				p.Client.Rate = 0.005
			}
		},
		trainer: func(p *fed.Plan, k *kernel.Set, w localtrain.Work, o fed.ClientOptimizer) fed.LocalTrainer {
			return &localtrain.PFedMe{
				Work: w, Kernel: k, Lambda: p.Client.Lambda, Inner: p.Client.Inner, InnerSteps: p.Client.InnerSteps, Optimizer: o,
			}
		},
	},
	{
		name:       "reptile",
		about:      "the server moves part of the way to the mean of the clients' models, which then adapt quickly",
		paper:      "Nichol et al. 2018; as song2021 compares it, which lr is from",
		optimizers: anyOptimizer, works: true,
		behind: "fedavg", weightings: byClients,
		kinds: synchronous,
		set: func(p *fed.Plan) {
			asSong2021(p)
			p.Server.Rate = 0.25
		},
	},
	{
		name:       "local",
		about:      "every client trains alone, and nothing travels",
		paper:      "bose2023, configuration 3; bose2024, P3",
		optimizers: plainOptimizer, works: true,
		weightings: alike, alone: true, partition: "all",
	},
	{
		name:       "pooled",
		about:      "all readings in one place, as if there were no reason for federated learning: simulator only",
		paper:      "bose2023, No-FL: as many gradient steps as a client takes in its 2000 rounds, in few rounds so that moments last",
		optimizers: plainOptimizer, works: true,
		weightings: alike, alone: true, partition: "none",
		set: func(p *fed.Plan) {
			p.Rounds, p.Client.Steps = 8, 1000
			p.Evaluate.Every = 1
		},
	},
}
