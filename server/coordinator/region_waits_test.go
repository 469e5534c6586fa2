package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// absent is a hub that cannot count the results of a run, because the run's keeper does not answer.
type absent struct {
	v1.AgentServiceClient
	run     string
	offered map[string]int // results by run; those without their numbers have a question mark
	calls   int
}

// Announce refuses all clients, as if they were too many.
func (h *absent) Announce(context.Context, *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	h.calls++
	return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("10001 clients are announced"))
}

func (h *absent) Exchange(_ context.Context, q *v1.ExchangeRequest) (*v1.ExchangeResponse, error) {
	a := &v1.ExchangeResponse{NextContactMs: 1000, Announce: h.calls > 0} // it knows no clients of the region
	if q.Result != nil {
		a.Received = &v1.Received{Outcome: v1.Outcome_OUTCOME_COUNTED}
		if name := q.Result.Run; len(q.Result.Chunk) == 0 {
			h.offered[name+"?"]++
			a.Received = &v1.Received{Outcome: v1.Outcome_OUTCOME_PART}
		} else {
			h.offered[name]++
		}
		if q.Result.Run == h.run {
			a.Received = &v1.Received{Outcome: v1.Outcome_OUTCOME_UNKNOWN, Reason: "keeper auditor does not answer"}
		}
	}
	return a, nil
}

// newRelay returns a relay with four clients and an absent hub.
func newRelay(t *testing.T) (*relay, *site, *absent) {
	s := newSite(t)
	s.announce(0, 4)
	held, err := s.Lead(t.Context(), "region", time.Hour, time.Now())
	testkit.Must(t, err)
	hub := &absent{offered: map[string]int{}}
	return &relay{
		RegionConfig: RegionConfig{Ledger: s.Ledger, Blobs: s.blobs, Lead: time.Hour, Wake: func(string) {}, Log: slog.New(slog.DiscardHandler), Terms: terms.NewCache(func(_ context.Context, run string) (*terms.Terms, error) {
			return s.terms(run), nil
		})},
		hub: hub, lead: held, renew: time.Now().Add(time.Hour), announced: time.Now(), clients: 4,
		sent: map[string]bool{}, waits: map[string]time.Time{}, since: map[roundKey]time.Time{},
		sums: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sums"}, []string{"outcome"}),
	}, s, hub
}

// TestRelayOfTooManyClients checks that a region continues with the clients that its hub knows if
// the hub refuses the list of its clients, and that it does not send the list again immediately.
func TestRelayOfTooManyClients(t *testing.T) {
	r, _, hub := newRelay(t)
	r.clients = 3 // there is a new one
	for range 2 {
		r.next = time.Time{}
		testkit.Must(t, r.tick(t.Context()))
	}
	if hub.calls != 1 || !r.next.After(time.Now()) {
		t.Errorf("the region has announced its clients %d times, and calls the hub again at %v", hub.calls, r.next)
	}
}

// TestRelayWhileKeeperIsAway checks that a region offers one result of a run whose keeper does not
// answer, sends the results of other runs, and calls the hub as often as the hub asks. When the
// keeper answers again, the region sends the results that have waited.
func TestRelayWhileKeeperIsAway(t *testing.T) {
	r, s, hub := newRelay(t)
	hub.run = "a"
	held := r.lead
	for _, run := range []string{"a", "b"} {
		for in := range int64(3) { // each round is a sending of its own
			_, _, err := s.Relay.Adopt(t.Context(), held, ledger.Adoption{
				Run: ledger.Run{ID: run, Name: run, Plan: "algorithm: fedavg\nrounds: 3\n" + small, PlanBlob: "plan", Fleet: 4}, Round: in,
				Blobs: ledger.Version{Weights: "weights"}, Clients: []string{client(0)}, Until: time.Now().Add(time.Hour),
			}, time.Now())
			testkit.Must(t, err)
			s.count(s.tasks(run)...)
		}
	}
	tick := func(what string, want map[string]int) {
		t.Helper()
		clear(hub.offered)
		before := time.Now()
		r.next = time.Time{} // the hub's wish is over
		testkit.Must(t, r.tick(t.Context()))
		if !maps.Equal(hub.offered, want) {
			t.Errorf("%s: the region sent %v, want %v", what, hub.offered, want)
		}
		if most := time.Now().Add(time.Second); r.next.After(most) {
			t.Errorf("%s: the region calls again after %v", what, r.next.Sub(before))
		}
	}
	tick("the keeper is away", map[string]int{"a": 1, "b": 3})
	tick("soon afterwards", map[string]int{})
	again := func() { r.waits["a"] = r.waits["a"].Add(-offerEvery) }
	again()
	tick("later", map[string]int{"a?": 1})
	hub.run = ""
	again()
	tick("the keeper is back", map[string]int{"a?": 1, "a": 3})
	for _, run := range []string{"a", "b"} {
		if left, err := s.Relay.Sendings(t.Context(), run); err != nil || len(left) > 0 {
			t.Errorf("run %s still has %v, %v", run, left, err)
		}
	}
}
