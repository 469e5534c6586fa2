package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/agent/identity"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/blob"
	"loadstar/server/ledger"
)

// newRegion returns a station that is a region of the given hub.
func newRegion(t testing.TB, hub *station, change func(*Config)) *station {
	t.Helper()
	i, err := identity.Join(t.Context(), t.TempDir(), hub.url, hub.token(1), "region")
	testkit.Must(t, err)
	t.Cleanup(i.HTTPClient().CloseIdleConnections)
	return newStation(t, func(c *Config) {
		c.Hub = &Hub{Address: hub.url, Name: i.ID(), Client: i.HTTPClient(), Renew: i.RenewIfDue}
		if change != nil {
			change(c)
		}
	})
}

// begin starts a run that waits until the hub has the given number of clients.
func (st *station) begin(plan string, clients int64) string {
	st.Helper()
	s, err := st.operator.StartRun(st.Context(), &v1.StartRunRequest{Plan: plan, Clients: clients})
	testkit.Must(st, err)
	return s.Run
}

// TestRegionCannotDriveRuns checks that a region's operators can neither start nor stop the
// hub's runs, and that the error names the hub.
func TestRegionCannotDriveRuns(t *testing.T) {
	t.Parallel()
	hub := newStation(t, nil)
	region := newRegion(t, hub, nil)
	a := region.join("a", "b")
	run := hub.begin(small, 2)
	task := a.task(run, 0)
	_, err := region.operator.StopRun(t.Context(), &v1.StopRunRequest{Run: run})
	region.wantCode("a stop", err, connect.CodeFailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), "hub") {
		t.Errorf("%v", err)
	}
	_, err = region.operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: small})
	region.wantCode("a start", err, connect.CodeFailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), hub.url) {
		t.Errorf("%v", err)
	}
	// If the folder belonged to a standalone server before, it may contain a waiting run.
	// Such a run does not block the hub's runs.
	testkit.Must(t, region.ledger.AddRun(t.Context(), ledger.Run{ID: "old", Plan: small, Wanted: 9, Created: time.Now()}, "test"))
	for i, c := range task.Clients {
		_, err := a.Push(t.Context(), region.update(task, c, i))
		testkit.Must(t, err)
	}
	a.task(run, 1)
	testkit.Must(t, region.ledger.StopRun(t.Context(), "old", "test", time.Now()))
}

// When the hub closes turns, the region closes them too, so that its agents stop training.
func TestRegionClosesWithHub(t *testing.T) {
	t.Parallel()
	hub := newStation(t, nil)
	region := newRegion(t, hub, func(c *Config) { c.Linger = time.Hour })
	a := region.join("a", "b")
	run := hub.begin(small, 2)
	task := a.task(run, 0)
	_, err := a.Push(t.Context(), region.update(task, "a", 1)) // the sum waits for b
	testkit.Must(t, err)
	_, err = hub.operator.StopRun(t.Context(), &v1.StopRunRequest{Run: run})
	testkit.Must(t, err)
	testkit.Eventually(region, "a turn in training is closed", func() bool {
		s, err := a.Exchange(t.Context(), &v1.ExchangeRequest{Training: []*v1.Turns{{Run: run, Clients: []string{"b"}}}})
		testkit.Must(t, err)
		return len(s.Verdicts) == 1 && s.Verdicts[0].Outcome == v1.Outcome_OUTCOME_CLOSED
	})
	if n := leases(region); n != 0 {
		t.Errorf("%d leases", n)
	}
	testkit.Eventually(region, "a result is closed", func() bool { return a.heard(run, 0, "a") == v1.Outcome_OUTCOME_CLOSED })
}

// TestRegionRetires checks that a region stores the versions from which clients are training,
// and deletes older ones.
func TestRegionRetires(t *testing.T) {
	t.Parallel()
	hub := newStation(t, nil)
	region := newRegion(t, hub, nil)
	a := region.join("a", "b")
	run := hub.begin(small, 2)
	var weights []string
	for round := range int64(4) {
		task := a.task(run, round)
		weights = append(weights, task.Weights)
		for i, c := range task.Clients {
			_, err := a.Push(t.Context(), region.update(task, c, i))
			testkit.Must(t, err)
		}
	}
	newest := a.task(run, 4)
	for v, hash := range weights {
		_, err := region.ledger.Version(t.Context(), run, int64(v))
		if !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("version %d: %v", v, err)
		}
		testkit.Eventually(region, "the weights of the version are deleted", func() bool {
			_, err := region.blobs.Get(t.Context(), hash)
			return errors.Is(err, blob.ErrNotFound)
		})
	}
	_, err := region.blobs.Get(t.Context(), newest.Weights)
	testkit.Must(t, err)
}

// scales is a client for the agents' API that counts the bytes of pushed results.
type scales struct {
	v1.AgentServiceClient
	bytes int
}

func (c *scales) Exchange(ctx context.Context, q *v1.ExchangeRequest) (*v1.ExchangeResponse, error) {
	c.bytes += len(q.GetResult().GetChunk())
	return c.AgentServiceClient.Exchange(ctx, q)
}

// TestPushResumes checks that an interrupted push resumes where it stopped.
func TestPushResumes(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	a := st.join("a", "b")
	task := a.task(st.begin(small, 2), 0)
	q := st.sum(task, "a", "b")
	numbers := q.Chunk
	q.Chunk = numbers[:len(numbers)/2]
	if s, err := a.Push(t.Context(), q); err != nil || s.NextOffset != int64(len(q.Chunk)) {
		t.Fatalf("%v, %v", s, err)
	}
	c := &scales{AgentServiceClient: a}
	for range 2 { // the second push sends no numbers
		s, err := protocol.SendResult(t.Context(), c, nil, q, numbers, len(numbers)/5, false)
		testkit.Must(t, err)
		if want := len(numbers) - len(numbers)/2; s.Outcome != v1.Outcome_OUTCOME_ACCEPTED && s.Outcome != v1.Outcome_OUTCOME_COUNTED || c.bytes != want {
			t.Errorf("%v after %d bytes, want %d", s, c.bytes, want)
		}
		testkit.Eventually(st, "the result is counted", func() bool { return a.heard(task.Run, 0, "a") == v1.Outcome_OUTCOME_COUNTED })
	}
}

// TestRegionWithoutOne checks that if the hub closes one client's turn, only the results in the
// same batch are lost, and the region declines their turns, so that the hub does not wait for
// them.
func TestRegionWithoutOne(t *testing.T) {
	t.Parallel()
	hub := newStation(t, nil)
	region := newRegion(t, hub, func(c *Config) { c.Linger = time.Hour }) // the sum waits for all clients
	a := region.join("a", "b", "c", "d")
	run := hub.begin(small, 4)
	task := a.task(run, 0)
	counted := 0
	for _, q := range []*v1.Result{region.sum(task, "a", "b"), region.update(task, "c", 2), region.update(task, "d", 3)} {
		if counted += len(q.Shares); counted == 4 {
			_, err := hub.operator.Revoke(t.Context(), &v1.RevokeRequest{Client: "a"})
			testkit.Must(t, err)
		}
		_, err := a.Push(t.Context(), q)
		testkit.Must(t, err)
		testkit.Eventually(region, "the result is counted in the region", func() bool { return leases(region) == 4-counted })
	}
	next := a.task(run, 1)
	if !slices.Equal(next.Clients, []string{"b", "c", "d"}) {
		t.Errorf("%v", next.Clients)
	}
	for c, want := range map[string]v1.Outcome{
		"a": v1.Outcome_OUTCOME_CLOSED, "b": v1.Outcome_OUTCOME_CLOSED, "c": v1.Outcome_OUTCOME_COUNTED, "d": v1.Outcome_OUTCOME_COUNTED,
	} {
		testkit.Eventually(region, "the agent has its verdict", func() bool { return a.heard(run, 0, c) == want })
	}
	rounds, err := hub.ledger.Rounds(t.Context(), run, 0, 9)
	testkit.Must(t, err)
	if r := rounds[len(rounds)-1]; r.Counted != 2 || r.Lost != 2 {
		t.Errorf("%+v", r)
	}
}
