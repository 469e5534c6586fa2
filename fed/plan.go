package fed

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
)

// Plan says what is trained, on what, by whom and how. It is one YAML file, the
// same for the simulator and for a fleet. fed/recipe reads it: it knows which keys
// each algorithm has, and their defaults.
type Plan struct {
	Name string `yaml:"name"`
	// Seed is behind every draw: initial weights, cohorts, batches, delays.
	Seed uint64 `yaml:"seed"`
	// Data is a dataset's description or prepared file, for the simulator; a fleet
	// has its own.
	Data  string `yaml:"data"`
	Model Model  `yaml:"model"`
	// Partition names the personal layers: none, head, head+top, all, or a list.
	Partition string `yaml:"partition"`
	// Algorithm is a name of fed/recipe.
	Algorithm string `yaml:"algorithm"`
	// Rounds is how many are opened; of a buffered schedule, how many merges happen.
	Rounds   int      `yaml:"rounds"`
	Client   Client   `yaml:"client"`
	Server   Server   `yaml:"server"`
	Schedule Schedule `yaml:"schedule"`
	Evaluate Evaluate `yaml:"evaluate"`
	// Simulate is what the simulator pretends of a fleet; a real one ignores it.
	Simulate Simulate `yaml:"simulate"`
}

// Model is the forecaster and what it is given.
type Model struct {
	Name     string `yaml:"name"`
	Lookback int    `yaml:"lookback"`
	// Horizon is how many steps after the last input the first target lies, and
	// Targets how many are forecast from there on.
	Horizon int `yaml:"horizon"`
	Targets int `yaml:"targets"`
	// Inputs are as series.ParseInput reads them. If there are none, they are those
	// of the model's paper as far as the dataset has them.
	Inputs []string `yaml:"inputs,flow"`
	// Scaling is client or fleet: whose training part the ranges are from.
	Scaling string `yaml:"scaling"`
	// Loss is mse, mae or pinball, the last with Quantiles.
	Loss      string    `yaml:"loss"`
	Quantiles []float64 `yaml:"quantiles,flow"`
	Split     Split     `yaml:"split,flow"`
}

// Split is the shares of a client's span that train and validate; the rest tests.
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
	// Steps or Epochs says how much: one of them is 0.
	Steps  int `yaml:"steps"`
	Epochs int `yaml:"epochs"`
	// Resample is step, a fresh batch for each, or round, one batch for all.
	Resample string `yaml:"resample"`
	// Decay multiplies the rate by Factor every so many rounds; 0 never.
	Decay Decay `yaml:"decay,flow"`

	// Inner is the rate of the step that meta-learners look ahead, or of pFedMe's
	// inner solver.
	Inner float64 `yaml:"inner_lr"`
	// InnerSteps is how many of these pFedMe takes for each of its own.
	InnerSteps int `yaml:"inner_steps"`
	// Lambda is how strongly pFedMe ties a personal model to the shared one.
	Lambda float64 `yaml:"lambda"`
	// Delta is the distance at which FedMeta takes its difference of gradients.
	Delta float64 `yaml:"delta"`
}

// Decay is a staircase.
type Decay struct {
	Factor float64 `yaml:"factor"`
	Every  int     `yaml:"every"`
}

// Server is what is done with updates.
type Server struct {
	// Optimizer is the server optimizer behind an aggregator that goes with any.
	Optimizer string  `yaml:"optimizer"`
	Rate      float64 `yaml:"lr"`
	Beta1     float64 `yaml:"beta1"`
	Beta2     float64 `yaml:"beta2"`
	Tau       float64 `yaml:"tau"`
	Epsilon   float64 `yaml:"epsilon"`
	Dampening float64 `yaml:"dampening"`
	// SecondMoment is update or momentum: what is squared.
	SecondMoment string `yaml:"second_moment"`
	// Weighting is examples or uniform.
	Weighting string `yaml:"weighting"`

	// Alpha is how far fedasync moves towards a fresh client.
	Alpha float64 `yaml:"alpha"`
	// Discount is constant, polynomial or hinge: what staleness costs. Exponent is
	// the polynomial's or the hinge's a, and Hinge its b.
	Discount string  `yaml:"discount"`
	Exponent float64 `yaml:"exponent"`
	Hinge    int     `yaml:"hinge"`

	// Peak is 1 or max-lambda: the height of FedNorm's curve.
	Peak string `yaml:"peak"`

	// Delta and Beta are FedSIM's; BetaDecay lets Beta go linearly to 0 over the
	// rounds. Variant is full, no-prox, server-gradient or first-order.
	Delta     float64 `yaml:"delta"`
	Beta      float64 `yaml:"beta"`
	BetaDecay bool    `yaml:"beta_decay"`
	Variant   string  `yaml:"variant"`
	// Clients is the share of the clients whose data the server has; they are not
	// in the fleet. Batch is how many of their examples it uses in a round.
	Clients float64 `yaml:"clients"`
	Batch   int     `yaml:"batch"`

	// Bound refuses an update with a coordinate beyond it, and MaxExamples is the
	// most that an update can weigh: together with the cohort they fix the scale in
	// which updates are summed exactly.
	Bound       float64 `yaml:"bound"`
	MaxExamples int     `yaml:"max_examples"`
}

// Schedule says who trains when, and when updates are merged.
type Schedule struct {
	// Kind is synchronous, buffered or periodic.
	Kind string `yaml:"kind"`
	// Cohort is how many updates a synchronous round wants, and otherwise how many
	// clients run at a time; 0 is the whole fleet.
	Cohort int `yaml:"cohort"`
	// Over asks that share more than the cohort, against those who do not return.
	Over float64 `yaml:"over_selection"`
	// Quorum is the share of the cohort without which a round is abandoned at its
	// deadline.
	Quorum   float64  `yaml:"quorum"`
	Deadline Duration `yaml:"deadline"`
	// Buffer is how many updates are merged together.
	Buffer int `yaml:"buffer"`
	// Period is the time between merges of what has arrived.
	Period Duration `yaml:"period"`
}

// Evaluate says when and on whom forecasts are scored.
type Evaluate struct {
	// Every so many rounds a sample of validation windows is scored; 0 never. The
	// test part is scored in the end, whole.
	Every int `yaml:"every"`
	// Clients and Windows bound the sample: of clients, and of windows of each.
	Clients int `yaml:"clients"`
	Windows int `yaml:"windows"`
	// Forecasts is of how many clients the forecasts of the test part are kept.
	Forecasts int `yaml:"forecasts"`
	// Holdout is the share of clients that do not train: they take the shared
	// weights in the end, fine-tune and are scored. If there are any, only they are.
	Holdout float64 `yaml:"holdout"`
	// FineTune is what a client does before it is scored in the end; nothing if both
	// are 0.
	FineTune FineTune `yaml:"fine_tune,flow"`
}

// FineTune is local training before scoring, with the client's optimizer and batch.
type FineTune struct {
	Steps  int     `yaml:"steps"`
	Epochs int     `yaml:"epochs"`
	Rate   float64 `yaml:"lr"` // 0 means the client's
}

// Simulate is how the simulator's clients behave in virtual time.
type Simulate struct {
	// StepTime is how long a client of speed 1 takes for a gradient step; speeds are
	// log-normal with the given spread.
	StepTime    Duration `yaml:"step_time"`
	SpeedSpread float64  `yaml:"speed_spread"`
	// Link is bytes per second both ways, log-normal with the given spread; 0 is
	// infinitely fast. Latency is added to every exchange.
	Link       float64  `yaml:"link"`
	LinkSpread float64  `yaml:"link_spread"`
	Latency    Duration `yaml:"latency"`
	// Dropout is the probability that a client that was asked never returns.
	Dropout float64 `yaml:"dropout"`
	// Delay is fekri2023, which replaces the times above: a client returns within
	// the period, or with probability Delayed one later, and so on.
	Delay   string  `yaml:"delay"`
	Delayed float64 `yaml:"delayed"`
}

// Duration is a time span, written as 90s or 1h30m.
type Duration time.Duration

// UnmarshalYAML reads a duration.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return fmt.Errorf("line %d: %q is no time span such as 90s or 1h30m", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes a duration as UnmarshalYAML reads it.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }
