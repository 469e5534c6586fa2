package recipe

import (
	"encoding"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/nn/kernel"
)

// counted is a quadratic objective that counts how often its gradient is computed. The
// gradients are so small that training does not diverge at any learning rate.
type counted struct {
	examples  int
	gradients int
}

func (o *counted) Len() int { return o.examples }

func (o *counted) Gradient(g, w []float32, examples []int) float64 {
	o.gradients++
	loss := 0.0
	for i := range g {
		g[i] = 0.001 * (w[i] - float32(examples[0]%5))
		loss += float64(g[i] * g[i])
	}
	return loss
}

func (o *counted) Loss(w []float32, _ []int) float64 { return float64(w[0]) }

// StepsOf predicts the number of gradients that every algorithm's trainer computes and reports.
// The simulator's virtual clock and the `plan explain` command use it.
func TestStepsOf(t *testing.T) {
	const weights = 12
	for _, a := range algorithms {
		if a.gradients == nil {
			t.Errorf("%s: the entry does not have the number of gradients per step", a.name)
			continue
		}
		works := []string{"steps: 1", "steps: 7", "steps: 3, resample: round", "epochs: 1", "epochs: 3"}
		if a.fullPass {
			works = []string{"lr: 0.1"}
		}
		for _, optimizer := range a.optimizers {
			for _, work := range works {
				text := fmt.Sprintf("algorithm: %s\nclient: {optimizer: %s, batch: 8, %s}", a.name, optimizer, work)
				p, err := Read([]byte(text))
				if err != nil {
					t.Fatalf("%s\n%v", text, err)
				}
				c, err := Compose(p, 10)
				if err != nil {
					t.Fatal(err)
				}
				trainer := c.NewTrainer(kernel.Available()[0])
				for _, examples := range []int{1, 8, 9, 50} {
					o := &counted{examples: examples}
					turn := &fed.Turn{
						W: make([]float32, weights), Shared: []fed.Span{{Lo: 0, Hi: weights}}, First: true,
						Kept: make([]float32, trainer.Kept(weights, weights)), Rand: rand.New(rand.NewPCG(1, 2)), Division: rand.New(rand.NewPCG(3, 4)),
						Task: fed.Task{Shared: make([]float32, weights)},
					}
					if c.Needs.Control {
						turn.Control, turn.Task.Control = make([]float32, weights), make([]float32, weights)
					}
					got, err := trainer.Train(t.Context(), o, turn)
					if err != nil {
						t.Fatalf("%s\n%v", text, err)
					}
					if want := StepsOf(p, examples); got.Steps != want || o.gradients != want {
						t.Errorf("%s\n%d examples: %d gradients predicted, %d taken, %d reported", text, examples, want, o.gradients, got.Steps)
					}
				}
			}
		}
	}
}

// ServerState equals the number of vectors in the saved state, for every algorithm and server
// optimizer. The `plan explain` command estimates the server's memory from this number.
func TestServerState(t *testing.T) {
	const shared, fleet = 2000, 3
	for _, p := range somePlans(t) {
		if p.Schedule.Cohort = 0; p.Schedule.Buffer > fleet {
			p.Schedule.Buffer = fleet
		}
		c, err := Compose(p, fleet)
		if err != nil {
			t.Fatal(err)
		}
		aggregator, optimizer := c.NewAggregator(), c.NewOptimizer()
		weights := make([]float32, shared)
		for round := range 2 {
			d := make([]float64, shared)
			if err := aggregator.Aggregate(d, mergeOf(t, c, round, weights, fleet)); err != nil {
				t.Fatalf("%s: %v", p.Algorithm, err)
			}
			optimizer.Step(weights, d)
		}
		bytes := 0
		for _, part := range []any{aggregator, optimizer} {
			if m, ok := part.(encoding.BinaryMarshaler); ok {
				b, err := m.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				bytes += len(b)
			}
		}
		// The encoding takes 8 or 9 bytes per number.
		if got := int(math.Round(float64(bytes) / 8.5 / shared)); got != c.ServerState {
			t.Errorf("%s with server optimizer %q: %d vectors predicted, %d saved", p.Algorithm, p.Server.Optimizer, c.ServerState, got)
		}
	}
}

// slope is a fed.ServerData with the loss ‖w‖²/2.
type slope struct{}

func (slope) Gradient(g, shared []float32) error { copy(g, shared); return nil }

// mergeOf returns a merge with one random update from each client.
func mergeOf(t *testing.T, c *Composition, round int, shared []float32, fleet int) *fed.Merge {
	rng := rand.New(rand.NewPCG(uint64(round), 1))
	numbers := func() []float32 {
		x := make([]float32, len(shared))
		for i := range x {
			x[i] = 0.1 * (rng.Float32() - 0.5)
		}
		return x
	}
	m := &fed.Merge{Round: round, Version: round, Shared: shared, Fleet: fleet, Server: slope{}}
	sums := fed.Sums{Version: round, Delta: exact.NewSum(c.Scale, len(shared))}
	if c.Needs.Control {
		sums.Control = exact.NewSum(c.Control, len(shared))
	}
	for i := range fleet {
		u := fed.Update{Client: fed.ClientID(rune('a' + i)), Version: round, Examples: 10, Delta: numbers(), Loss: rng.Float64()}
		if err := sums.Delta.Add(c.Weight(u.Examples), u.Delta); err != nil {
			t.Fatal(err)
		}
		if sums.Control != nil {
			if err := sums.Control.Add(1, numbers()); err != nil {
				t.Fatal(err)
			}
		}
		if c.Needs.EachUpdate {
			m.Updates = append(m.Updates, fed.Received{Update: u, From: shared})
		}
	}
	m.Sums = []fed.Sums{sums}
	return m
}
