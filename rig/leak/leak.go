// Package leak reconstructs readings from the data that leaves an agent: losses, updates and
// scores.
//
// An attack in this package acts as a server that chooses plan and weights. It has everything
// that a server can know, and every arbitrary choice is made in its favour. Every turn begins
// with fresh personal layers, limits on rounds and plans are not applied, and the number of
// examples is known exactly.
package leak

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"loadstar/agent"
	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/forecast"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Session is a plan that a host of clients has accepted.
type Session interface {
	Setup() *setup.Setup
	// Train runs a client's first turn of the task and returns the update that the agent would send
	// to the server.
	Train(ctx context.Context, m series.Meter, t fed.Task) (*fed.Update, error)
	// Score returns the relative MAE that the agent would send for the task's weights. It
	// returns false if the agent would send no score.
	Score(m series.Meter, t fed.Task) (relative float64, ok bool)
}

// Open offers a plan to a host of clients. The error states why the host declines the plan.
type Open func(plan string) (Session, error)

// Fleet is the number of clients in a run of an attack.
const Fleet = 19

// Homes returns meters with random hourly loads. They have no pattern, so an attack can learn a
// reading only from data that depends on it.
func Homes(n, days int) (*series.Dataset, error) {
	r := rand.New(rand.NewPCG(11, 12))
	var all []series.Meter
	for i := range n {
		m := series.Meter{ID: fmt.Sprint("home-", i), Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}
		for range 24 * days {
			m.Load = append(m.Load, float32(min(math.Exp(0.8*r.NormFloat64()), 9)))
		}
		all = append(all, m)
	}
	return series.NewDataset(series.Dataset{Name: "homes", Interval: time.Hour, Clock: time.UTC}, all)
}

// Defended returns a host that is an agent with a policy.
func Defended(d *series.Dataset, k *kernel.Set, allow policy.Policy) Open {
	return func(plan string) (Session, error) {
		return agent.NewProbe([]byte(plan), Fleet, d, k, &allow, [32]byte{1})
	}
}

// Undefended returns a host that accepts every plan, draws from the plan's seed and sends exact
// numbers, as agents did before their draws were secret.
func Undefended(d *series.Dataset, k *kernel.Set) Open {
	return func(plan string) (Session, error) {
		p, err := recipe.Read([]byte(plan))
		if err != nil {
			return nil, err
		}
		if p, err = recipe.Resolve(p, d.Interval); err != nil {
			return nil, err
		}
		problem, err := recipe.Frame(p, d)
		if err != nil {
			return nil, err
		}
		s, err := setup.New(p, problem, Fleet)
		if err != nil {
			return nil, err
		}
		return &undefended{setup: s, kernel: k}, nil
	}
}

type undefended struct {
	setup  *setup.Setup
	kernel *kernel.Set
	worker *client.Worker // nil before the first turn
}

func (s *undefended) Setup() *setup.Setup { return s.setup }

func (s *undefended) Train(ctx context.Context, m series.Meter, t fed.Task) (*fed.Update, error) {
	if s.worker == nil {
		s.worker = s.setup.NewWorker(s.kernel)
	}
	c := client.Client{ID: fed.ClientID(m.ID), Data: []series.Examples{examples(s.setup, m)}, Kept: s.setup.InitialKept(s.worker), First: true}
	var u fed.Update
	err := s.worker.Train(ctx, &c, t, &u)
	return &u, err
}

func (s *undefended) Score(m series.Meter, t fed.Task) (float64, bool) {
	q, plan := s.setup.Problem, s.setup.Plan
	scorer := forecast.NewScorer(q.Model, s.kernel, q.Loss)
	scorer.Reference, scorer.Stride = forecast.Reference(plan.Evaluate.Reference), plan.Evaluate.Stride.Steps()
	w := make([]float32, q.Model.Net().Weights())
	_, personal := s.setup.InitialWeights()
	q.Partition.Join(w, q.SharedWeights(t.Shared), personal)
	score, _, err := scorer.Score(w, m, examples(s.setup, m), series.Validation, plan.Evaluate.Windows, nil)
	relative := score.Overall.RelativeMAE()
	return relative, err == nil && !math.IsNaN(relative) && !math.IsInf(relative, 0)
}

func examples(s *setup.Setup, m series.Meter) series.Examples {
	return s.Problem.Examples(m, s.Problem.Framer.Ranges(m))
}

// Example is a training example together with the model's output before training.
type Example struct {
	Inputs         []float32
	Target, Output float64
}

// Examples returns the training examples of a meter, oldest first. An attacker knows inputs and
// outputs if the inputs are calendar features. The targets are the true values.
func Examples(s *setup.Setup, m series.Meter, k *kernel.Set) []Example {
	data, net := examples(s, m), s.Problem.Model.Net()
	shared, personal := s.InitialWeights()
	w := make([]float32, net.Weights())
	s.Problem.Partition.Join(w, s.Problem.SharedWeights(shared), personal)
	n, width, targets := data.Len(series.Train), data.Inputs(), s.Problem.PerExample()
	origins := make([]series.Example, n)
	for i := range origins {
		origins[i].Last = data.At(series.Train, i)
	}
	x, y, out := make([]float32, n*width), make([]float32, n*targets), make([]float32, n*net.Outputs())
	data.Gather(x, y, origins)
	const batch = 64
	net.NewWorkspace(k, batch).Predict(out, w, x)
	all := make([]Example, n)
	for i := range all {
		all[i] = Example{Inputs: x[i*width:][:width], Target: float64(y[i*targets]), Output: float64(out[i*net.Outputs()])}
	}
	return all
}

// Errors returns the squared error of each example before training.
func Errors(all []Example) []float64 {
	e := make([]float64, len(all))
	for i, x := range all {
		e[i] = (x.Target - x.Output) * (x.Target - x.Output)
	}
	return e
}

// PublicBatches reconstructs the examples of a turn from a plan, in the order of the turn's
// steps.
func PublicBatches(seed uint64, round int, name string, n, batch, steps int) (all []int) {
	r := fed.Rand(seed, "train", round, fed.ClientID(name))
	for range steps {
		taken := map[int]bool{}
		for last := n - batch; last < n; last++ {
			x := r.IntN(last + 1)
			if taken[x] {
				x = last
			}
			taken[x] = true
			all = append(all, x)
		}
	}
	return all
}

// Constant returns shared weights with which the model forecasts one value.
func Constant(s *setup.Setup, value float32) []float32 {
	net := s.Problem.Model.Net()
	layers := net.Layers()
	tensors := layers[len(layers)-1].Tensors
	bias := tensors[len(tensors)-1]
	for _, l := range layers { // dense has layers after its head
		for _, x := range l.Tensors {
			if x.Name == "head.bias" {
				bias = x
			}
		}
	}
	w := make([]float32, net.Weights())
	for i := range bias.Shape[0] {
		w[bias.Offset+i] = value
	}
	shared := make([]float32, s.Problem.SharedLen())
	s.Problem.Partition.Cut(w, s.Problem.SharedWeights(shared), make([]float32, s.Problem.Partition.PersonalLen()))
	return shared
}

// MeanOf returns the mean load of the scored windows, given the relative errors of two constant
// forecasts, low and high, which are below and above all loads.
func MeanOf(low, high, errorOfLow, errorOfHigh float64) float64 {
	return (errorOfLow*high + errorOfHigh*low) / (errorOfLow + errorOfHigh)
}

// position returns the position of an input's weight in the head's row of the first output, in a
// shared vector that contains only the head.
func position(s *setup.Setup, input string) (int, error) {
	names := s.Problem.InputNames()
	width := len(names)
	for i, name := range names {
		if name == input {
			shared := s.Problem.Partition.SharedLen()
			return (shared-s.Problem.Model.Net().Outputs())/s.Problem.Model.Net().Outputs() - width + i, nil
		}
	}
	return 0, fmt.Errorf("the model has no input %s", input)
}
