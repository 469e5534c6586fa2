package fed

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
)

// Plan is the training configuration: model, data, clients, algorithm and settings. It is
// one YAML file, the same for the simulator and for a fleet. fed/recipe reads it and
// knows each algorithm's keys and defaults.
type Plan struct {
	Name string `yaml:"name"`
	// Seed determines every draw: initial weights, cohorts, batches, delays.
	Seed uint64 `yaml:"seed"`
	// Data is a dataset's description or prepared file. Only the simulator uses it;
	// agents have their own data.
	Data  string `yaml:"data"`
	Model Model  `yaml:"model"`
	// Partition selects the personal layers: none, head, head+top, all, or a list.
	Partition string `yaml:"partition"`
	// Algorithm is the name of an algorithm in fed/recipe.
	Algorithm string `yaml:"algorithm"`
	// Rounds is the number of rounds to open, or of merges in a buffered schedule.
	Rounds   int      `yaml:"rounds"`
	Client   Client   `yaml:"client"`
	Server   Server   `yaml:"server"`
	Schedule Schedule `yaml:"schedule"`
	Evaluate Evaluate `yaml:"evaluate"`
	// Simulate sets the behaviour of simulated clients. A real fleet ignores it.
	Simulate Simulate `yaml:"simulate"`
}

// Model is the forecaster and its inputs.
type Model struct {
	Name     string `yaml:"name"`
	Lookback int    `yaml:"lookback"`
	// Horizon is the number of steps from the last input to the first target, and Targets
	// the number of consecutive targets.
	Horizon int `yaml:"horizon"`
	Targets int `yaml:"targets"`
	// Inputs has the syntax of series.ParseInput. If it is empty, the inputs are those of
	// the model's paper that the dataset has.
	Inputs []string `yaml:"inputs,flow"`
	// Scaling is client or fleet: the data whose training split determines the ranges.
	Scaling string `yaml:"scaling"`
	// Loss is mse, mae or pinball. Pinball uses Quantiles.
	Loss      string    `yaml:"loss"`
	Quantiles []float64 `yaml:"quantiles,flow"`
	Split     Split     `yaml:"split,flow"`
}

// Split has the shares of a client's time span for training and validation. The rest is
// for tests.
type Split struct {
	Train      float64 `yaml:"train"`
	Validation float64 `yaml:"validation"`
}

// Client is a client's work in a round.
type Client struct {
	Optimizer string  `yaml:"optimizer"`
	Rate      float64 `yaml:"lr"`
	Beta1     float64 `yaml:"beta1"`
	Beta2     float64 `yaml:"beta2"`
	Epsilon   float64 `yaml:"epsilon"`
	// Mu is the weight of the proximal term, mu/2·‖shared - received‖².
	Mu    float64 `yaml:"mu"`
	Batch int     `yaml:"batch"`
	// Steps or Epochs sets the amount of work; one of them is 0.
	Steps  int `yaml:"steps"`
	Epochs int `yaml:"epochs"`
	// Resample is step (a new batch for each step) or round (one batch for all steps).
	Resample string `yaml:"resample"`
	// Decay multiplies the rate by Factor after every Every rounds; 0 means never.
	Decay Decay `yaml:"decay,flow"`

	// Inner is the rate of the look-ahead step of meta-learners, or of pFedMe's inner
	// solver.
	Inner float64 `yaml:"inner_lr"`
	// InnerSteps is the number of inner steps per step of pFedMe.
	InnerSteps int `yaml:"inner_steps"`
	// Lambda is the strength of the pull of pFedMe's personal model towards the shared
	// one.
	Lambda float64 `yaml:"lambda"`
	// Delta is the distance between the points at which FedMeta compares gradients.
	Delta float64 `yaml:"delta"`
}

// Decay is a staircase for the learning rate.
type Decay struct {
	Factor float64 `yaml:"factor"`
	Every  int     `yaml:"every"`
}

// Server configures aggregation and the server optimizer.
type Server struct {
	// Optimizer is the server optimizer, if the algorithm lets the plan choose it.
	Optimizer string  `yaml:"optimizer"`
	Rate      float64 `yaml:"lr"`
	Beta1     float64 `yaml:"beta1"`
	Beta2     float64 `yaml:"beta2"`
	Tau       float64 `yaml:"tau"`
	Epsilon   float64 `yaml:"epsilon"`
	Dampening float64 `yaml:"dampening"`
	// SecondMoment is update or momentum: the quantity that is squared.
	SecondMoment string `yaml:"second_moment"`
	// Weighting is examples or uniform.
	Weighting string `yaml:"weighting"`

	// Alpha is the share of the way that fedasync moves towards a fresh client.
	Alpha float64 `yaml:"alpha"`
	// Discount is constant, polynomial or hinge: the discount for staleness. Exponent is
	// the polynomial's or the hinge's a, and Hinge its b.
	Discount string  `yaml:"discount"`
	Exponent float64 `yaml:"exponent"`
	Hinge    int     `yaml:"hinge"`

	// Peak is 1 or max-lambda: the height of FedNorm's curve.
	Peak string `yaml:"peak"`

	// Delta and Beta are FedSIM's. BetaDecay lowers Beta linearly to 0 over the rounds.
	// Variant is full, no-prox, server-gradient or first-order.
	Delta     float64 `yaml:"delta"`
	Beta      float64 `yaml:"beta"`
	BetaDecay bool    `yaml:"beta_decay"`
	Variant   string  `yaml:"variant"`
	// Clients is the share of the clients whose data is on the server; they are not in
	// the fleet. Batch is the number of their examples that the server uses in a round.
	Clients float64 `yaml:"clients"`
	Batch   int     `yaml:"batch"`

	// Bound is the largest permitted coordinate of an update, and MaxExamples the largest
	// weight of an update. Together with the cohort they determine the resolution of
	// exact sums.
	Bound       float64 `yaml:"bound"`
	MaxExamples int     `yaml:"max_examples"`
}

// Schedule sets which clients train when, and when updates are merged.
type Schedule struct {
	// Kind is synchronous, buffered or periodic.
	Kind string `yaml:"kind"`
	// Cohort is the number of updates wanted in a synchronous round, or the number of
	// clients that train at a time in other schedules; 0 means the whole fleet.
	Cohort int `yaml:"cohort"`
	// Over is the share of additional clients to ask, to allow for clients that do not
	// return.
	Over float64 `yaml:"over_selection"`
	// Quorum is the share of the cohort below which a round is abandoned at its deadline.
	Quorum   float64  `yaml:"quorum"`
	Deadline Duration `yaml:"deadline"`
	// Buffer is the number of updates per merge.
	Buffer int `yaml:"buffer"`
	// Period is the time between merges.
	Period Duration `yaml:"period"`
}

// Evaluate sets when forecasts are scored and for which clients.
type Evaluate struct {
	// Every is the number of rounds between scorings of a sample of validation windows; 0
	// means never. At the end, the whole test split is scored.
	Every int `yaml:"every"`
	// Clients and Windows limit the sample: the number of clients, and of windows per
	// client.
	Clients int `yaml:"clients"`
	Windows int `yaml:"windows"`
	// Forecasts is the number of clients whose forecasts of the test split are stored.
	Forecasts int `yaml:"forecasts"`
	// Holdout is the share of clients that do not train. At the end they take the shared
	// weights, fine-tune them and are scored. If there are any, only they are scored.
	Holdout float64 `yaml:"holdout"`
	// FineTune is local training before the scoring at the end; none if both are 0.
	FineTune FineTune `yaml:"fine_tune,flow"`
}

// FineTune is local training before scoring, with the client's optimizer and batch size.
type FineTune struct {
	Steps  int     `yaml:"steps"`
	Epochs int     `yaml:"epochs"`
	Rate   float64 `yaml:"lr"` // 0 means the client's
}

// Simulate sets the behaviour of simulated clients in virtual time.
type Simulate struct {
	// StepTime is the time of a gradient step on a client of speed 1. Speeds are
	// log-normal with the given spread.
	StepTime    Duration `yaml:"step_time"`
	SpeedSpread float64  `yaml:"speed_spread"`
	// Link is the bandwidth in bytes per second in either direction, log-normal with the
	// given spread; 0 means infinite. Latency is added to every transfer.
	Link       float64  `yaml:"link"`
	LinkSpread float64  `yaml:"link_spread"`
	Latency    Duration `yaml:"latency"`
	// Dropout is the probability that a client asked never returns.
	Dropout float64 `yaml:"dropout"`
	// Delay is empty or fekri2023, which replaces the times above: a client returns
	// within the period, or with probability Delayed one period later, and so on.
	Delay   string  `yaml:"delay"`
	Delayed float64 `yaml:"delayed"`
}

// Duration is a time span such as 90s or 1h30m.
type Duration time.Duration

// UnmarshalYAML reads a duration.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return fmt.Errorf("line %d: %q is not a duration; write one such as 90s or 1h30m", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes a duration as UnmarshalYAML reads it.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }
