package client

import (
	"math"
	"slices"
	"testing"

	"loadstar/fed/round"
)

// TestClientStates computes the copies of two clients directly, in float64, and checks that a
// client's copy does not depend on the other client or on the server.
func TestClientStates(t *testing.T) {
	const rounds = 4
	x := newFixture(t, "{algorithm: fedavgadaptive, model: {name: fekri2023, lookback: 4, targets: 2}, partition: head, "+
		"client: {optimizer: proxadam, mu: 0.5, batch: 8, steps: 3}, server: {states: client, lr: 0.01, beta1: 0.8, epsilon: 1e-4}}", homes(t, 2))
	p := x.problem.Partition
	shared, personal := p.SharedLen(), p.PersonalLen()
	for i := range 2 {
		c, received := x.client(i, x.initial)
		other, _ := x.client(i, x.initial)
		if want := personal + 2*shared; len(c.Kept) != want {
			t.Fatalf("a client stores %d numbers, want %d: personal weights, its copy and its moments", len(c.Kept), want)
		}
		theta, v := slices.Clone(received), make([]float64, shared)
		for r := range rounds {
			u := x.train(t, c, x.task(r, received))
			trained := make([]float32, shared)
			p.Cut(x.worker.Weights(), trained, make([]float32, personal))
			for j, d := range u.Delta {
				if d != trained[j]-theta[j] {
					t.Fatalf("round %d: update %d is %v, but the weight moved by %v", r, j, d, trained[j]-theta[j])
				}
				v[j] = 0.8*v[j] + 0.2*float64(d)*float64(d)
				theta[j] = float32(float64(theta[j]) + 0.01*float64(d)/(math.Sqrt(v[j])+1e-4))
			}
			near(t, "copy", c.Kept[personal:][:shared], theta, 1e-6)
			copy(theta, c.Kept[personal:]) // prevents errors from adding up
			for j := range v {
				if got := float64(c.Kept[personal+shared+j]); math.Abs(got-v[j]) > 1e-5*v[j] {
					t.Fatalf("round %d: second moment %d is %v, want %v", r, j, got, v[j])
				}
			}
			// After the first round, the server's weights have no effect, not even through the
			// proximal term.
			if r == 0 {
				x.train(t, other, x.task(r, received))
				continue
			}
			moved := slices.Clone(received)
			for j := range moved {
				moved[j] += float32(r)
			}
			if v := x.train(t, other, x.task(r, moved)); !sameBits(u.Delta, v.Delta) {
				t.Fatalf("round %d: the update depends on the server's weights", r)
			}
		}
		if !sameBits(c.Kept, other.Kept) {
			t.Error("the stored state depends on the server's weights")
		}
	}
}

// TestOneClientState checks that a client's copy equals the server's shared weights if the
// server has no other client.
func TestOneClientState(t *testing.T) {
	x := newFixture(t, "{algorithm: fedavgadaptive, model: {name: fekri2023, lookback: 4, targets: 2}, "+
		"client: {batch: 8, steps: 2}, server: {states: client, lr: 0.01}}", homes(t, 1))
	c, shared := x.client(0, x.initial)
	server := round.NewServer(x.parts.NewAggregator(), x.parts.NewOptimizer(), 1, slices.Clone(shared))
	for r := range 5 {
		fold := round.NewFold(round.Rules{Needs: x.parts.Needs, Scale: x.parts.Scale, Weight: x.parts.Weight})
		task := server.Task(r)
		u := x.train(t, c, task)
		if err := fold.Add(&u, task.Shared); err != nil {
			t.Fatal(err)
		}
		if err := server.Merge(r, fold, nil); err != nil {
			t.Fatal(err)
		}
		near(t, "copy", c.Kept[:len(shared)], server.Shared(), 1e-6)
	}
	if slices.Equal(server.Shared(), shared) {
		t.Error("nothing was trained")
	}
}
