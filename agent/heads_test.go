package agent

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"strings"
	"testing"

	"loadstar/fed/round"
	"loadstar/internal/head"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// story is a chain of heads that a server signs, with the weights of each version.
type story struct {
	key     ed25519.PrivateKey
	heads   []*loadstarv1.Head
	weights []string
}

func (s *story) add(run, weights string) {
	h := head.Head{Run: run, Version: int64(len(s.heads)), Weights: weights}
	if n := len(s.heads); n > 0 {
		last := s.heads[n-1]
		h.Previous = (&head.Head{Run: run, Version: last.Version, Weights: last.Weights, Previous: last.Previous}).Hash()
	}
	h.Sign(s.key)
	s.heads = append(s.heads, &loadstarv1.Head{Version: h.Version, Weights: h.Weights, Previous: h.Previous, Signature: h.Signature})
	s.weights = append(s.weights, weights)
}

// TestTwoStories checks a server that shows two agents different weights for the same version.
// The contradiction must be detected, even after a restart, as soon as one agent sees a head
// that the server has shown to the other. Agents follow a consistent server, even through
// versions that they have not seen.
func TestTwoStories(t *testing.T) {
	d := meters(t, 1)
	plan := dense(settings{"rounds": 40, "client.lr": 0.005})
	s := newStub(t)
	x, err := newSessionOf(t, d, plan)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := x.InitialWeights()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	// Both stories have the same version 0. All weights are close to each other, so that
	// only heads can distinguish them.
	blob := func(by float32) string {
		w := append([]float32(nil), first...)
		w[5] += by
		return s.put(round.AppendFloats(nil, w))
	}
	const run = "run"
	tell := func(key ed25519.PrivateKey, by ...float32) (x story) {
		x.key = key
		for _, b := range by {
			x.add(run, blob(b))
		}
		return x
	}
	one, two, forged := tell(private, 0, 0.01, 0.011, 0.012), tell(private, 0, 0.015, 0.016, 0.017), tell(stranger, 0, 0.01, 0.011)
	blobs := s.blobs
	type given struct {
		story    *story
		from, to int // heads
		version  int
		weights  *story // source of the weights, if it is not the story
		want     string // empty if the task is trained
	}
	for name, tasks := range map[string][]given{
		"one story":                 {{&one, 0, 1, 0, nil, ""}, {&one, 1, 2, 1, nil, ""}, {&one, 2, 4, 3, nil, ""}},
		"repeated heads":            {{&one, 0, 3, 2, nil, ""}, {&one, 0, 4, 3, nil, ""}},
		"an older version":          {{&one, 0, 3, 2, nil, ""}, {&one, 0, 2, 1, nil, ""}},
		"met late":                  {{&one, 2, 3, 2, nil, ""}, {&one, 3, 4, 3, nil, ""}},
		"two heads of a version":    {{&one, 0, 2, 1, nil, ""}, {&two, 1, 2, 1, nil, "two heads of version 1"}},
		"another head before":       {{&one, 0, 2, 1, nil, ""}, {&two, 2, 3, 2, nil, "does not follow that of version 1"}},
		"a version left out":        {{&one, 0, 2, 1, nil, ""}, {&one, 3, 4, 3, nil, "does not follow that of version 1"}},
		"an older version, changed": {{&one, 0, 3, 2, nil, ""}, {&two, 1, 2, 1, nil, "two heads of version 1"}},
		"no heads":                  {{&one, 0, 0, 0, nil, "not yet shown a head of version 0"}},
		"too few heads":             {{&one, 0, 2, 1, nil, ""}, {&one, 2, 3, 3, nil, "not yet shown a head of version 3"}, {&one, 3, 4, 3, nil, ""}},
		"other weights than signed": {{&one, 0, 2, 1, &two, "not those that the server has signed"}},
		"another key":               {{&forged, 0, 1, 0, nil, "not signed with the key"}, {&one, 0, 1, 0, nil, ""}},
		"a fork is not forgotten":   {{&one, 0, 2, 1, nil, ""}, {&two, 1, 2, 1, nil, "two stories"}, {&one, 2, 3, 2, nil, "two stories"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStub(t)
			s.blobs = maps.Clone(blobs)
			c := config(t, "a", s.http.URL, t.TempDir(), d)
			c.Chunk, c.Policy = 1<<20, checked()
			if err := head.WriteKey(c.Dir, public); err != nil {
				t.Fatal(err)
			}
			s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
				for _, p := range r.Pushed {
					a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: p.Run, Round: p.Round, Clients: p.Clients, Outcome: loadstarv1.Outcome_OUTCOME_CLOSED})
				}
				return nil
			}
			for i, g := range tasks {
				stop := start(t, c)
				k := s.task(t, run, int64(i), plan, 9, "meter-00")
				k.Version, k.Heads, k.Weights = int64(g.version), g.story.heads[g.from:g.to], g.story.weights[g.version]
				if g.weights != nil {
					k.Weights = g.weights.weights[g.version]
				}
				s.mu.Lock()
				s.declines = nil
				s.mu.Unlock()
				s.give(k)
				if g.want != "" {
					if reason := s.declined(t, run); !strings.Contains(reason, g.want) {
						t.Errorf("task %d: declined because %q, want %q", i, reason, g.want)
					}
				} else {
					s.pushed(t, run, int64(i))
					n := len(s.checkInsNow())
					s.wait(t, "verdicts", func() bool { return len(s.checkIns) > n+2 })
					seen := s.checkInsNow()[len(s.checkInsNow())-1].Heads
					if len(seen) != 1 || seen[0].Run != run || seen[0].Version < int64(g.version) || len(seen[0].Hash) != 32 {
						t.Errorf("task %d: the agent reports %v", i, seen)
					}
				}
				stop()
			}
		})
	}
}

// checkInsNow returns the check-ins received so far.
func (s *stub) checkInsNow() []*loadstarv1.ExchangeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkIns
}

// TestForked checks that an agent stops training a run if the server says that it does not have
// the head that the agent has seen.
func TestForked(t *testing.T) {
	d := meters(t, 1)
	plan := dense(settings{"rounds": 40, "client.lr": 0.005})
	s := newStub(t)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	c.Chunk, c.Policy = 1<<20, checked()
	if err := head.WriteKey(c.Dir, public); err != nil {
		t.Fatal(err)
	}
	stop := start(t, c)
	k := s.task(t, "run", 0, plan, 9, "meter-00")
	x := story{key: private}
	x.add("run", k.Weights)
	k.Heads = x.heads
	s.give(k)
	s.pushed(t, "run", 0)
	told := 0
	s.mu.Lock()
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		for _, p := range r.Pushed {
			a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: p.Run, Round: p.Round, Clients: p.Clients, Outcome: loadstarv1.Outcome_OUTCOME_COUNTED})
		}
		for _, h := range r.Heads {
			a.Forked = append(a.Forked, h.Run)
			told++
		}
		return nil
	}
	s.mu.Unlock()
	s.wait(t, "a head", func() bool { return told > 1 })
	stop()
	defer start(t, c)()
	again := s.task(t, "run", 1, plan, 9, "meter-00")
	again.Heads = x.heads
	s.give(again)
	if reason := s.declined(t, "run"); !strings.Contains(reason, "the server no longer has the head of version 0") {
		t.Error(reason)
	}
	if got := fmt.Sprint(len(s.checkInsNow()[0].Heads)); got != "0" {
		t.Errorf("a new agent reports %s heads", got)
	}
}
