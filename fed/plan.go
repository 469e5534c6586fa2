package fed

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
)

// Plan is the training configuration: model, data, clients, algorithm and settings. The
// simulator and fleets use the same YAML file. fed/recipe reads the file, and defines each
// algorithm's keys and defaults.
type Plan struct {
	Name string `yaml:"name"`
	// Seed determines all random choices: initial weights, cohorts, batches, delays.
	Seed  uint64 `yaml:"seed"`
	Model Model  `yaml:"model"`
	// Partition selects the personal layers: none, head, head+top, correction, all, or a list of
	// layers.
	Partition string `yaml:"partition"`
	// Algorithm is the name of an algorithm in fed/recipe.
	Algorithm string `yaml:"algorithm"`
	// Start is the path of a .safetensors file, or of a run's folder, with the shared weights
	// from which the simulator starts. If Start is empty, the initial weights are random. If it
	// is server-data, the initial weights are random weights trained on the server's data.
	Start string `yaml:"start"`
	// Rounds is the number of rounds to open or, in a buffered schedule, the number of merges to
	// make.
	Rounds   int      `yaml:"rounds"`
	Client   Client   `yaml:"client"`
	Server   Server   `yaml:"server"`
	Schedule Schedule `yaml:"schedule"`
	Privacy  Privacy  `yaml:"privacy"`
	Evaluate Evaluate `yaml:"evaluate"`
	// Simulate sets the behaviour of simulated clients. A real fleet ignores it.
	Simulate Simulate `yaml:"simulate"`
}

// Model selects the forecasting model, its inputs and its loss.
type Model struct {
	Name     string   `yaml:"name"`
	Lookback Timespan `yaml:"lookback"`
	// Horizon is the distance from the last input to the first target, and Targets the
	// number of consecutive targets.
	Horizon Timespan `yaml:"horizon"`
	Targets Timespan `yaml:"targets"`
	// Inputs has the syntax of series.ParseInput. If Inputs is empty, the model uses the inputs
	// from its paper that the dataset contains.
	Inputs []string `yaml:"inputs,flow"`
	// Scaling is client or fleet. It determines whether the minimum and maximum for scaling are
	// those of the client's own training split or those of all clients' training splits.
	Scaling string `yaml:"scaling"`
	// Loss is mse, mae or pinball. Pinball uses Quantiles.
	Loss      string    `yaml:"loss"`
	Quantiles []float64 `yaml:"quantiles,flow"`
	Split     Split     `yaml:"split,flow"`
	// Gaps is the largest permitted share of missing readings before an origin. Only models with
	// rows of features have this setting.
	Gaps float64 `yaml:"gaps"`
	// Interval is the time between readings. It is 0 until the plan is resolved for a dataset.
	Interval Duration `yaml:"interval"`
}

// Split contains the shares of a client's time span that are used for training and validation.
// The rest is used for testing.
type Split struct {
	Train      float64 `yaml:"train"`
	Validation float64 `yaml:"validation"`
}

// Client configures how a client trains in a round.
type Client struct {
	Optimizer string  `yaml:"optimizer"`
	Rate      float64 `yaml:"lr"`
	Beta1     float64 `yaml:"beta1"`
	Beta2     float64 `yaml:"beta2"`
	Epsilon   float64 `yaml:"epsilon"`
	// Mu is the weight of the proximal term, mu/2·‖shared - received‖².
	Mu    float64 `yaml:"mu"`
	Batch int     `yaml:"batch"`
	// Either Steps or Epochs sets the amount of training in a round; the other one is 0.
	Steps  int `yaml:"steps"`
	Epochs int `yaml:"epochs"`
	// Resample is step (a new batch for each step) or round (one batch for all steps).
	Resample string `yaml:"resample"`
	// Decay multiplies the learning rate by Factor after every Every rounds. If Every is 0, the
	// rate is constant.
	Decay Decay `yaml:"decay,flow"`
	// If RateEnd is above 0, the learning rate falls from Rate to RateEnd along a cosine
	// over all steps of the run. Warmup is the number of steps at the start of the run over
	// which the learning rate rises linearly.
	RateEnd float64 `yaml:"lr_end"`
	Warmup  int     `yaml:"warmup"`
	// Moments determines what happens to the optimizer's moments between rounds: reset, kept or
	// averaged.
	Moments string `yaml:"moments"`
	// Begin determines the shared weights from which a client's turn starts: received (the
	// server's) or own (the client's after its last counted turn).
	Begin       string      `yaml:"begin"`
	WeightDecay WeightDecay `yaml:"weight_decay,flow"`

	// Inner is the learning rate of the meta-learners' look-ahead step, or of pFedMe's
	// inner solver.
	Inner float64 `yaml:"inner_lr"`
	// InnerSteps is the number of inner steps that pFedMe takes per outer step.
	InnerSteps int `yaml:"inner_steps"`
	// Lambda sets how strongly pFedMe pulls the personal model towards the shared model.
	Lambda float64 `yaml:"lambda"`
	// Delta is the distance between the points at which FedMeta compares gradients.
	Delta float64 `yaml:"delta"`
	// Query is the share of a client's training examples that the meta-learners use only
	// after the look-ahead step. 0 means that both steps use all examples.
	Query float64 `yaml:"query"`
}

// Decay lowers the learning rate in steps.
type Decay struct {
	Factor float64 `yaml:"factor"`
	Every  int     `yaml:"every"`
}

// WeightDecay shrinks weights in every step, by the learning rate times a factor.
type WeightDecay struct {
	// All is the factor for all weights.
	All float64 `yaml:"all"`
	// Correction, multiplied by the square of the client's noise, is the factor for the matrices
	// and biases of the correction layers. [Turn] defines the noise.
	Correction float64 `yaml:"correction"`
}

// Server configures aggregation and the server optimizer.
type Server struct {
	// Optimizer is the server optimizer. Only some algorithms let the plan choose it.
	Optimizer string  `yaml:"optimizer"`
	Rate      float64 `yaml:"lr"`
	// Decay is constant or linear: whether Rate falls to 0 over the rounds.
	Decay     string  `yaml:"decay"`
	Beta1     float64 `yaml:"beta1"`
	Beta2     float64 `yaml:"beta2"`
	Tau       float64 `yaml:"tau"`
	Epsilon   float64 `yaml:"epsilon"`
	Dampening float64 `yaml:"dampening"`
	// SecondMoment is the quantity whose square the second moment averages: update or
	// momentum.
	SecondMoment string `yaml:"second_moment"`
	// Weighting is examples (an update is weighted by its number of examples) or uniform (all
	// updates have equal weight).
	Weighting string `yaml:"weighting"`

	// States determines whether FedAvgAdaptive has one copy of the shared weights (one) or
	// one for each client (client).
	States string `yaml:"states"`

	// Alpha is the fraction of the distance to a fresh client's weights by which fedasync
	// moves the shared weights.
	Alpha float64 `yaml:"alpha"`
	// Discount is constant, polynomial or hinge: the discount for staleness. Exponent is
	// the parameter a of polynomial and hinge, and Hinge is the parameter b of hinge.
	Discount string  `yaml:"discount"`
	Exponent float64 `yaml:"exponent"`
	Hinge    int     `yaml:"hinge"`

	// Peak is 1 or max-lambda: the height of FedNorm's curve. Loss is received or trained:
	// whether FedNorm compares the losses of the weights that clients receive, or the losses of
	// the weights that they return.
	Peak string `yaml:"peak"`
	Loss string `yaml:"loss"`

	// Delta and Beta are the parameters of the same names in FedSIM. BetaDecay lowers Beta
	// linearly to 0 over the rounds. Variant is full, no-prox, server-gradient or
	// first-order.
	Delta     float64 `yaml:"delta"`
	Beta      float64 `yaml:"beta"`
	BetaDecay bool    `yaml:"beta_decay"`
	Variant   string  `yaml:"variant"`
	// Clients is the share of clients whose data is on the server. These clients are not part of
	// the fleet. Batch is the number of their examples that the server uses in a round.
	Clients float64 `yaml:"clients"`
	Batch   int     `yaml:"batch"`
	// StartSteps is the number of gradient steps on the server's data before the first
	// round, if the plan's Start is server-data.
	StartSteps int `yaml:"start_steps"`

	// Clip limits the norm of an update and the norm of its control variate to this multiple of
	// the median of earlier updates, and its number of examples to the median itself. 0 means no
	// limits.
	Clip float64 `yaml:"clip"`
	// Coordinate limits each number of an update to this multiple of the sum of the learning
	// rates of a round's steps, because a step of an adaptive optimizer moves a weight by about
	// the learning rate. 0 means no limit.
	Coordinate float64 `yaml:"coordinate"`
	// Robust is none, trim or nearest. trim leaves the largest and the smallest fifth of each
	// coordinate out of the mean. nearest, which requires a private plan, leaves out the quarter
	// of the results farthest from the median.
	Robust string `yaml:"robust"`
	// Bound is the largest permitted magnitude of any number in an update, and MaxExamples is
	// the largest weight of an update in a sum. Together with the cohort size, they determine
	// the resolution of exact sums.
	Bound       float64 `yaml:"bound"`
	MaxExamples int     `yaml:"max_examples"`
}

// Schedule determines when each client trains and when updates are merged.
type Schedule struct {
	// Kind is synchronous, buffered or periodic.
	Kind string `yaml:"kind"`
	// Cohort is the intended number of updates in a synchronous round. In other schedules it is
	// the number of clients that train at the same time. 0 means the whole fleet.
	Cohort int `yaml:"cohort"`
	// Over is the number of additional clients to ask, as a share of the cohort. They
	// replace clients that do not return.
	Over float64 `yaml:"over_selection"`
	// Quorum is the share of the cohort that must have returned by the deadline. With
	// fewer updates, the round is abandoned.
	Quorum   float64  `yaml:"quorum"`
	Deadline Duration `yaml:"deadline"`
	// Buffer is the number of updates per merge.
	Buffer int `yaml:"buffer"`
	// Period is the time between merges.
	Period Duration `yaml:"period"`
}

// Privacy limits what the server learns about individual agents.
type Privacy struct {
	// Mode is none or private. In a private plan, agents mask their results, and the server
	// learns only the sum of a round.
	Mode string `yaml:"mode"`
	// Keepers are the names of the keepers that hold the keys of the masks. The server knows the
	// keepers' addresses, and the agents know their identities.
	Keepers []string `yaml:"keepers,flow"`
	// Least is the minimum number of agents in a sum.
	Least int `yaml:"least"`
	// Quorum is the minimum share of the members of each of a keeper's cells that a sum must
	// include.
	Quorum float64 `yaml:"quorum"`
	// Check is none or norm: whether keepers check the norm of each agent's result.
	Check string `yaml:"check"`
}

// Evaluate sets when forecasts are scored and for which clients.
type Evaluate struct {
	// Every is the number of rounds after which a sample of validation windows is scored
	// again; 0 means never. At the end of the run, the whole test split is scored.
	Every int `yaml:"every"`
	// Patience ends a simulated run if the validation loss, the mean over the sample, has not
	// reached a new minimum in this many rounds; 0 means never. A fleet ignores it.
	Patience int `yaml:"patience"`
	// Clients and Windows limit the sample to a number of clients and a number of windows
	// per client.
	Clients int `yaml:"clients"`
	Windows int `yaml:"windows"`
	// Sample is trained or holdout. It determines whether the sample contains clients that
	// train, or held-out clients after fine-tuning.
	Sample string `yaml:"sample"`
	// Stride is the distance between scored origins. Only models with rows of features have this setting.
	Stride Timespan `yaml:"stride"`
	// Forecasts is the number of clients whose forecasts of the test split are stored.
	Forecasts int `yaml:"forecasts"`
	// Reference is the forecast to which the relative MAE refers: auto, last-value, last-day or
	// last-week.
	Reference string `yaml:"reference"`
	// Correct means that the scored test forecasts are corrected by the latest errors, as
	// described in package calibrate.
	Correct bool `yaml:"correct"`
	// Holdout is the share of clients that do not train. At the end they fine-tune the shared
	// weights and are scored. If there are held-out clients, only they are scored.
	Holdout float64 `yaml:"holdout"`
	// FineTune is local training before the final scoring. If both Steps and Epochs are 0,
	// clients do not fine-tune.
	FineTune FineTune `yaml:"fine_tune,flow"`
	// Keep is last or best. With best, the weights with the client's lowest validation error are
	// also a candidate at the end.
	Keep string `yaml:"keep"`
	// Weights determines the shared layers with which a client is scored: shared (the server's)
	// or own (the client's, only if Client.Begin is own).
	Weights string `yaml:"weights"`
}

// FineTune is local training before scoring, with the client's optimizer and batch size.
type FineTune struct {
	Steps  int     `yaml:"steps"`
	Epochs int     `yaml:"epochs"`
	Rate   float64 `yaml:"lr"` // 0 means the client's rate
	// Choose is last (the weights after fine-tuning) or validation (the candidate with
	// the lowest validation error).
	Choose string `yaml:"choose"`
}

// Simulate sets the behaviour of simulated clients in virtual time.
type Simulate struct {
	// StepTime is the time that a client of speed 1 needs for one gradient. Clients'
	// speeds are log-normal with median 1 and the given spread.
	StepTime    Duration `yaml:"step_time"`
	SpeedSpread float64  `yaml:"speed_spread"`
	// Link is the median bandwidth in bytes per second, in either direction; 0 means
	// infinite. Clients' bandwidths are log-normal with the given spread. Latency is added
	// once per round.
	Link       float64  `yaml:"link"`
	LinkSpread float64  `yaml:"link_spread"`
	Latency    Duration `yaml:"latency"`
	// Dropout is the probability that a client that was asked to train returns no update in this
	// turn.
	Dropout float64 `yaml:"dropout"`
	// Delay is empty or fekri2023. fekri2023 replaces the times above: a client returns after
	// one period. With probability Delayed it takes a second period, and with the same
	// probability each further period.
	Delay   string  `yaml:"delay"`
	Delayed float64 `yaml:"delayed"`
}

// Duration is a time span such as 90s or 1h30m.
type Duration time.Duration

// UnmarshalYAML reads a duration in the syntax of [time.ParseDuration]. Negative durations
// are an error.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return fmt.Errorf("line %d: %q is not a duration; write one such as 90s or 1h30m", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes a duration in the syntax that UnmarshalYAML reads.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }
