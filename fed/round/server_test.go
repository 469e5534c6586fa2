package round

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/exact"
	"loadstar/fed/recipe"
	"loadstar/fed/serveropt"
)

const (
	serverFleet = 12
	serverLen   = 40
)

// slope is a fed.ServerData with the loss ‖w - 1‖²/2.
type slope struct{}

func (slope) Gradient(g, shared []float32) error {
	for i, w := range shared {
		g[i] = w - 1
	}
	return nil
}

// serverOf returns a new server for a plan, and the rules for its folds.
func serverOf(t *testing.T, text string) (*Server, Rules) {
	t.Helper()
	p, err := recipe.Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	parts, err := recipe.Compose(p, serverFleet)
	if err != nil {
		t.Fatal(err)
	}
	shared := make([]float32, serverLen)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range shared {
		shared[i] = rng.Float32()
	}
	rules := Rules{Needs: parts.Needs, Scale: parts.Scale, Control: parts.Control, Weight: parts.Weight, WeightControl: parts.WeightControl}
	return NewServer(parts.NewAggregator(), parts.NewOptimizer(), serverFleet, shared), rules
}

// advance merges synthetic updates in a round. If past is not nil, some of them were
// trained from the previous version.
func advance(t *testing.T, s *Server, rules Rules, round int, past []float32) {
	t.Helper()
	rng := rand.New(rand.NewPCG(2, uint64(round)))
	numbers := func(scale float32) []float32 {
		x := make([]float32, serverLen)
		for i := range x {
			x[i] = scale * (rng.Float32() - 0.5)
		}
		return x
	}
	f := NewFold(rules)
	for i, c := range rng.Perm(serverFleet)[:5] {
		u := &fed.Update{
			Client: fed.ClientID(rune('a' + c)), Version: s.Version(), Examples: 1 + rng.IntN(500),
			Delta: numbers(0.2), Loss: rng.Float64(), Steps: 4,
		}
		from := s.Shared()
		if i == 0 && past != nil && !rules.Needs.Control {
			u.Version, from = s.Version()-1, past
		}
		if rules.Needs.Control {
			u.Control = numbers(1)
		}
		if err := f.Add(u, from); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Merge(round, f, slope{}); err != nil {
		t.Fatal(err)
	}
}

// everyServer returns a plan for each algorithm and each server optimizer.
func everyServer() map[string]string {
	plans := map[string]string{}
	for _, a := range recipe.Names() {
		plans[a] = "algorithm: " + a
	}
	for _, o := range []string{"fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"} {
		plans["fedbuff with "+o] = "{algorithm: fedbuff, server: {optimizer: " + o + "}}"
	}
	plans["second moment of the momentum"] = "{algorithm: fedadam, server: {second_moment: momentum}}"
	plans["fedsim first-order"] = "{algorithm: fedsim, server: {variant: first-order}}"
	return plans
}

// A server that is restored from saved state between any two merges has the same weights
// and tasks, bit for bit, as a server that was not interrupted.
func TestServerContinuesFromState(t *testing.T) {
	for name, plan := range everyServer() {
		t.Run(name, func(t *testing.T) {
			steady, rules := serverOf(t, plan)
			first := slices.Clone(steady.Shared())
			restored, _ := serverOf(t, plan)
			var past []float32
			for r := range 6 {
				b, err := restored.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				restored, _ = serverOf(t, plan)
				if err := restored.UnmarshalBinary(b); err != nil {
					t.Fatal(err)
				}
				a, z := steady.Task(r), restored.Task(r)
				if a.Version != r || z.Version != r || !slices.Equal(a.Shared, z.Shared) || !slices.Equal(a.Control, z.Control) || (len(a.Control) > 0) != rules.Needs.Control {
					t.Fatalf("round %d: tasks of versions %d and %d", r, a.Version, z.Version)
				}
				kept := slices.Clone(a.Shared)
				advance(t, steady, rules, r, past)
				advance(t, restored, rules, r, past)
				if !slices.Equal(a.Shared, kept) {
					t.Fatalf("round %d: the merge changed a task", r)
				}
				if !slices.Equal(steady.Shared(), restored.Shared()) || steady.Version() != restored.Version() {
					t.Fatalf("round %d: the weights differ", r)
				}
				past = a.Shared
			}
			if slices.Equal(first, steady.Shared()) {
				t.Error("the weights did not change")
			}
		})
	}
}

// A server that loses the state of its aggregator and optimizer must compute different weights.
// Otherwise the test above would prove nothing.
func TestServerStateMatters(t *testing.T) {
	for _, plan := range []string{"algorithm: fedavgm", "algorithm: fedadam", "algorithm: fedyogi", "algorithm: fedadagrad", "algorithm: fedavgadaptive"} {
		steady, rules := serverOf(t, plan)
		forgetful, _ := serverOf(t, plan)
		advance(t, steady, rules, 0, nil)
		advance(t, forgetful, rules, 0, nil)
		fresh, _ := serverOf(t, plan)
		fresh.version, fresh.shared = forgetful.version, forgetful.shared
		advance(t, steady, rules, 1, nil)
		advance(t, fresh, rules, 1, nil)
		if slices.Equal(steady.Shared(), fresh.Shared()) {
			t.Errorf("%s: the state makes no difference", plan)
		}
	}
}

func TestServerRejectsBadState(t *testing.T) {
	s, _ := serverOf(t, "algorithm: fedadam")
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	small := NewServer(aggregate.Mean{}, serveropt.Descent{Rate: 1}, 1, make([]float32, 3))
	if err := small.UnmarshalBinary(b); err == nil || !strings.Contains(err.Error(), "the saved state has 40 shared weights, want 3") {
		t.Error(err)
	}
	if err := s.UnmarshalBinary(b[:len(b)/2]); err == nil {
		t.Error("a truncated state is accepted")
	}
}

// blowUp is a server optimizer that moves weights beyond the range of float32.
type blowUp struct{}

func (blowUp) Step(shared []float32, d []float64) { shared[0] = float32(math.Inf(1)) }

func TestServerDiverged(t *testing.T) {
	s, rules := serverOf(t, "algorithm: fedavg")
	s.optimizer = blowUp{}
	f := NewFold(rules)
	if err := f.Add(&fed.Update{Client: "a", Examples: 1, Delta: make([]float32, serverLen)}, s.Shared()); err != nil {
		t.Fatal(err)
	}
	if err := s.Merge(0, f, nil); !errors.Is(err, fed.ErrDiverged) {
		t.Error(err)
	}
	if s.Version() != 0 || math.IsInf(float64(s.Shared()[0]), 0) {
		t.Error("the server accepted the weights")
	}
}

// An empty merge is an error, because it would divide 0 by 0.
func TestServerRejectsEmptyMerge(t *testing.T) {
	for name, plan := range everyServer() {
		s, rules := serverOf(t, plan)
		f := NewFold(rules)
		// A fold whose only update was rejected is empty as well.
		u := &fed.Update{Client: "a", Examples: 1, Delta: []float32{float32(math.NaN())}, Control: []float32{0}}
		if err := f.Add(u, make([]float32, 1)); !errors.Is(err, exact.ErrFinite) {
			t.Fatal(err)
		}
		if err := s.Merge(0, f, slope{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
