package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"loadstar/fed/policy"
	"loadstar/fed/round"
	"loadstar/nn"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// checked returns a policy that checks only weights.
func checked() *policy.Policy {
	p := policy.None()
	p.MostStep = 2
	return &p
}

// TestHonestWeights checks that agents that check weights decline nothing in 40 rounds of
// honest training, with and without momentum on the server.
func TestHonestWeights(t *testing.T) {
	if testing.Short() {
		t.Skip("two agents train for 40 rounds")
	}
	d := meters(t, 7)
	for name, plan := range map[string]settings{
		"dense":   dense(settings{"rounds": 40, "client.lr": 0.005, "client.lr_end": 2e-5, "client.steps": 8, "client.batch": 32}),
		"fedavgm": small("fedavgm", settings{"rounds": 40, "client.lr": 0.005}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, plan, namesOf(d), 5, false, 1)
			const agents = 2
			for i := range agents {
				c := config(t, fmt.Sprint("agent ", i), g.http.URL, t.TempDir(), part(t, d, i, agents))
				c.Chunk, c.Policy = 1<<20, checked()
				defer start(t, c)()
			}
			g.settled(t, 5*time.Minute)
			if len(g.declined) > 0 {
				t.Error(g.declined)
			}
		})
	}
}

// TestTrap checks which weights an agent declines, and that it trains the same weights if it
// does not check them.
func TestTrap(t *testing.T) {
	d := meters(t, 1)
	plan := dense(settings{"rounds": 40, "client.lr": 0.005})
	s := newStub(t)
	x, err := newSessionOf(t, d, plan)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := x.InitialWeights()
	changed := func(change func(w []float32)) []float32 {
		w := append([]float32(nil), first...)
		change(w)
		return w
	}
	var slopes, units, bias int // position and number of the first layer's slopes, and position of a bias before them
	at := 0
	for _, l := range x.Problem.Partition.Shared() {
		if l.Kind == nn.KindPReLU && units == 0 {
			slopes, units = at, l.Len()
		}
		if units == 0 {
			bias = at + l.Len() - 1
		}
		at += l.Len()
	}
	near := changed(func(w []float32) { w[bias] += 0.01 })
	dead := changed(func(w []float32) {
		for i := range units / 2 {
			w[slopes+i] = 0
		}
	})
	saturated := changed(func(w []float32) { // the biases of the head
		for i := range 3 {
			w[len(w)-1-i] += 15
		}
	})
	trap := changed(func(w []float32) { w[bias] = -3000 })
	run := 0
	for _, c := range []struct {
		name    string
		version int64
		weights []float32
		want    string // empty if the weights are trained
	}{
		{"version 0", 0, first, ""},
		{"another version 0", 0, near, "version 0 differs from the weights that follow from the plan's seed"},
		{"version 1", 1, near, ""},
		{"a trap as version 1", 1, trap, "away from version 0"},
		{"a trap in a run that the agent meets late", 1000, trap, "away from version 0, the maximum is 32"},
		{"dead units", 30, dead, "slopes of"},
		{"a saturated head", 1000, saturated, "wrong in the same direction"},
	} {
		for _, allow := range []*policy.Policy{checked(), {ShareLosses: true, FullPasses: true}} {
			run++
			c := c
			t.Run(fmt.Sprintf("%s, most step %g", c.name, allow.MostStep), func(t *testing.T) {
				name := fmt.Sprint("run ", run)
				a := config(t, name, s.http.URL, t.TempDir(), d)
				a.Chunk, a.Policy = 1<<20, allow
				defer start(t, a)()
				k := s.task(t, name, 0, plan, 9, "meter-00")
				k.Version, k.Weights = c.version, s.put(round.AppendFloats(nil, c.weights))
				s.give(k)
				defer s.end(name, 0)
				if c.want == "" || allow.MostStep == 0 {
					s.pushed(t, name, 0)
				} else if reason := s.declined(t, name); !strings.Contains(reason, c.want) {
					t.Errorf("declined because %q, want %q", reason, c.want)
				}
			})
		}
	}
}

// TestVersionsOfARun checks which weights an agent accepts after other versions of a run,
// including after a restart.
func TestVersionsOfARun(t *testing.T) {
	d := meters(t, 1)
	plan := dense(settings{"rounds": 40, "client.lr": 0.005})
	s := newStub(t)
	x, err := newSessionOf(t, d, plan)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := x.InitialWeights()
	moved := func(by float32) []float32 {
		w := append([]float32(nil), first...)
		w[5] += by
		return w
	}
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	c.Chunk, c.Policy = 1<<20, checked()
	limit := float32(1.5 * 0.005 * 3)
	for i, step := range []struct {
		version int64
		weights []float32
		want    string
	}{
		{0, first, ""},
		{1, moved(limit * 0.9), ""},
		{2, moved(limit * 1.8), ""},
		{3, moved(limit * 2.9), "a weight of version 3"}, // declined, so the next weights are compared with version 2
		{3, moved(limit * 2.7), ""},
		{3, moved(limit * 2.6), "not those that this agent has seen"},
		{4, first, ""}, // a rollback
		{5, moved(limit * 1.1), "a weight of version 5"},
		{6, moved(limit * 1.1), ""},
		{5, moved(limit * 0.5), ""}, // a client that was asked earlier trains later
		{5, moved(-limit * 0.5), "a weight of version 5"},
	} {
		round_ := int64(i)
		stop := start(t, c)
		k := s.task(t, "run", round_, plan, 9, "meter-00")
		k.Version, k.Weights = step.version, s.put(round.AppendFloats(nil, step.weights))
		s.mu.Lock()
		s.declines = nil
		s.mu.Unlock()
		s.give(k)
		if step.want != "" {
			if reason := s.declined(t, "run"); !strings.Contains(reason, step.want) {
				t.Errorf("step %d: declined because %q, want %q", i, reason, step.want)
			}
		} else {
			s.pushed(t, "run", round_)
			s.mu.Lock()
			s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
				for _, p := range r.Pushed {
					a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: p.Run, Round: p.Round, Clients: p.Clients, Outcome: loadstarv1.Outcome_OUTCOME_CLOSED})
				}
				return nil
			}
			n := len(s.checkIns)
			s.mu.Unlock()
			s.wait(t, "a verdict", func() bool { return len(s.checkIns) > n+2 })
		}
		s.end("run", round_)
		stop()
	}
}
