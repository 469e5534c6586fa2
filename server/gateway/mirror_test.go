package gateway

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// following returns a gateway that follows its ledger, and a context of its agent.
func following(t *testing.T) (*Gateway, context.Context) {
	g, _ := newGateway(t)
	return g, follow(t, g)
}

func follow(t *testing.T, g *Gateway) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) }) // it returns nil
	t.Cleanup(func() { cancel(); wg.Wait() })
	testkit.Eventually(t, "the gateway knows the leases", func() bool { _, fresh := g.mirror.current(); return fresh })
	return pki.With(ctx, pki.Identity{Role: pki.Agent, ID: "agent"})
}

// exchange calls the gateway and fails the test on an error.
func exchange(t *testing.T, ctx context.Context, g *Gateway, q *v1.ExchangeRequest) *v1.ExchangeResponse {
	t.Helper()
	s, err := g.Exchange(ctx, q)
	must(t, err)
	return s
}

// statements returns the number of SQL statements that a call runs.
func statements(g *Gateway, call func()) uint64 {
	before, _ := g.Ledger.Store.Work()
	call()
	after, _ := g.Ledger.Store.Work()
	return after - before
}

// idle declines all open turns of the agent, and returns its session.
func idle(t *testing.T, ctx context.Context, g *Gateway) string {
	t.Helper()
	all := &v1.Turns{Run: "run", Clients: []string{"a0", "a1", "a2"}}
	s := exchange(t, ctx, g, &v1.ExchangeRequest{Declines: []*v1.Decline{{Turns: all, Reason: "test"}}})
	if len(s.Tasks) > 0 {
		t.Fatalf("declined turns are given again: %v", s.Tasks)
	}
	return s.Session
}

// ask opens a round for clients.
func ask(t *testing.T, l *ledger.Ledger, round int64, members ...int64) {
	t.Helper()
	now := time.Now()
	lead, err := l.Lead(t.Context(), "test", time.Hour, now)
	must(t, err)
	must(t, l.Drive(t.Context(), lead, "run", func(d *ledger.Drive) error {
		_, _, err := d.Ask(ledger.Asking{Round: round, Members: members, Until: now.Add(time.Hour)})
		return err
	}))
}

// TestHeld checks that a held call occupies no slot, lane or memory, and ends when there is a
// task.
func TestHeld(t *testing.T) {
	g, ctx := following(t)
	session := idle(t, ctx, g)
	answers := make(chan *v1.ExchangeResponse)
	go func() {
		s, err := g.Exchange(ctx, &v1.ExchangeRequest{WaitMs: time.Hour.Milliseconds(), Session: session})
		if err != nil {
			t.Error(err)
		}
		answers <- s
	}()
	testkit.Eventually(t, "the call is held", func() bool { g.mirror.mu.Lock(); defer g.mirror.mu.Unlock(); return len(g.mirror.held) == 1 })
	ask(t, g.Ledger, 1, 0)
	s := <-answers
	if len(s.GetTasks()) != 1 || !slices.Equal(s.Tasks[0].Clients, []string{"a0"}) || s.Tasks[0].Round != 1 {
		t.Errorf("the held call returns %v", s)
	}
	g.mirror.mu.Lock()
	defer g.mirror.mu.Unlock()
	if len(g.mirror.held) != 0 {
		t.Error("a call is still held")
	}
}

// TestNotHeld checks that the calls of an agent that has work are not held.
func TestNotHeld(t *testing.T) {
	g, ctx := following(t)
	for name, q := range map[string]*v1.ExchangeRequest{
		"with a task":     {},
		"while it trains": {Training: []*v1.Turns{{Run: "run", Clients: []string{"a0", "a1", "a2"}}}},
		"with a verdict":  {Pushed: []*v1.Turns{{Run: "run", Round: 7, Clients: []string{"a0"}}}},
	} {
		q.WaitMs = time.Hour.Milliseconds()
		short, cancel := context.WithTimeout(ctx, time.Minute)
		if _, err := g.Exchange(short, q); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// TestHeldRevoked checks that a revocation ends held calls. If this process revokes the agent,
// they end immediately. If another process does, they end when the gateway reads the
// revocation.
func TestHeldRevoked(t *testing.T) {
	for name, revoked := range map[string]func(g *Gateway){
		"by this process": func(g *Gateway) { g.Revoked("agent") },
		"by another one":  func(*Gateway) {},
	} {
		t.Run(name, func(t *testing.T) {
			g, ctx := following(t)
			session := idle(t, ctx, g)
			failed := make(chan error)
			go func() {
				_, err := g.Exchange(ctx, &v1.ExchangeRequest{WaitMs: time.Hour.Milliseconds(), Session: session})
				failed <- err
			}()
			testkit.Eventually(t, "the call is held", func() bool { g.mirror.mu.Lock(); defer g.mirror.mu.Unlock(); return len(g.mirror.held) == 1 })
			must(t, g.Ledger.Directory.RevokeAgent(t.Context(), "agent", "test", time.Now()))
			revoked(g)
			if err := <-failed; connect.CodeOf(err) != connect.CodePermissionDenied {
				t.Errorf("the held call ends with %v", err)
			}
		})
	}
}

// TestHeldUntilTheEnd checks that a gateway that shuts down answers held calls.
func TestHeldUntilTheEnd(t *testing.T) {
	g, _ := newGateway(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) }) // it returns nil
	testkit.Eventually(t, "the gateway knows the leases", func() bool { _, fresh := g.mirror.current(); return fresh })
	caller := pki.With(t.Context(), pki.Identity{Role: pki.Agent, ID: "agent"})
	session := idle(t, caller, g)
	wg.Go(func() {
		if _, err := g.Exchange(caller, &v1.ExchangeRequest{WaitMs: time.Hour.Milliseconds(), Session: session}); err != nil {
			t.Error(err)
		}
	})
	testkit.Eventually(t, "the call is held", func() bool { g.mirror.mu.Lock(); defer g.mirror.mu.Unlock(); return len(g.mirror.held) == 1 })
	cancel()
	wg.Wait()
	// A call that comes later, on a connection that is still open, is not held either.
	exchange(t, caller, g, &v1.ExchangeRequest{WaitMs: time.Hour.Milliseconds(), Session: session})
}

// TestMirror checks that an agent that last called this gateway gets its tasks from memory, and
// that any other agent gets them from the ledger, as does every agent after the copy was
// dropped.
func TestMirror(t *testing.T) {
	g, ctx := following(t)
	first := exchange(t, ctx, g, &v1.ExchangeRequest{})
	if len(first.Tasks) != 1 || len(first.Tasks[0].Clients) != 3 {
		t.Fatalf("the tasks are %v", first.Tasks)
	}
	testkit.Eventually(t, "a call needs no query", func() bool {
		return statements(g, func() {
			if s := exchange(t, ctx, g, &v1.ExchangeRequest{Session: first.Session}); len(s.Tasks) != 1 || len(s.Tasks[0].Clients) != 3 {
				t.Fatalf("the tasks from memory are %v", s.Tasks)
			}
		}) == 0
	})
	g.Forget()
	for _, session := range []string{"", first.Session, "another"} {
		if s := exchange(t, ctx, g, &v1.ExchangeRequest{Session: session}); len(s.Tasks) != 1 || s.Session == first.Session {
			t.Errorf("after its memory was dropped: %v", s)
		}
	}
}

// TestTwoGateways checks that a turn that was counted through another gateway is not assigned
// again, although this gateway's copy still has its lease.
func TestTwoGateways(t *testing.T) {
	g, ctx := following(t)
	c := g.Config
	c.Metrics = prometheus.NewRegistry()
	other := New(c)
	elsewhere := follow(t, other)
	mine := exchange(t, ctx, g, &v1.ExchangeRequest{}).Session
	// Count through the ledger, like another process, which does not notify this gateway.
	counted, err := g.Ledger.Counter.Count(t.Context(), "run", []ledger.Arrival{{Agent: "agent", Shares: []ledger.Share{{Client: "a1", Examples: 1}}}},
		func([]int) ([]ledger.Partial, []ledger.Single, error) { return nil, nil, nil })
	if err != nil || len(counted) != 1 {
		t.Fatal(counted, err)
	}
	if all, ok := g.mirror.tasks("agent"); !ok || len(all) != 3 {
		t.Skip("the gateway has read its leases again")
	}
	theirs := exchange(t, elsewhere, other, &v1.ExchangeRequest{}).Session
	if theirs == mine {
		t.Error("two gateways have the same session")
	}
	s := exchange(t, ctx, g, &v1.ExchangeRequest{Session: theirs})
	if len(s.Tasks) != 1 || !slices.Equal(s.Tasks[0].Clients, []string{"a0", "a2"}) {
		t.Errorf("a counted turn is given again: %v", s.Tasks)
	}
	// Verdicts come from the ledger, regardless of the copy.
	s = exchange(t, ctx, g, &v1.ExchangeRequest{Session: s.Session, Pushed: []*v1.Turns{{Run: "run", Clients: []string{"a0", "a1"}}}})
	got := map[string]v1.Outcome{}
	for _, v := range s.Verdicts {
		for _, client := range v.Clients {
			got[client] = v.Outcome
		}
	}
	if got["a0"] != v1.Outcome_OUTCOME_UNKNOWN || got["a1"] != v1.Outcome_OUTCOME_COUNTED {
		t.Errorf("the verdicts are %v", got)
	}
}
