package server

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/agent/identity"
	"loadstar/agent/release"
	"loadstar/fed/round"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
)

// shelf is a release.Host that stores an agent's releases.
type shelf struct {
	mu      sync.Mutex
	has     map[string]release.Release // by id
	loaders map[string]func(string) (release.Kept, bool, error)
	reports []release.Report
}

func newShelf() *shelf {
	return &shelf{has: map[string]release.Release{}, loaders: map[string]func(string) (release.Kept, bool, error){}}
}

func (h *shelf) Has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.has[id]
	return ok
}

func (h *shelf) Offer(r release.Release, load func(string) (release.Kept, bool, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, twice := h.has[r.ID]; twice {
		return errors.New("offered twice")
	}
	h.has[r.ID], h.loaders[r.ID] = r, load
	return nil
}

func (h *shelf) Retain(ids []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.has {
		if !slices.Contains(ids, id) {
			delete(h.has, id)
		}
	}
	return nil
}

func (h *shelf) Reports() ([]release.Report, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reports, func() { h.mu.Lock(); defer h.mu.Unlock(); h.reports = nil }
}

func (h *shelf) report(all ...release.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reports = all
}

func (h *shelf) reported() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.reports) == 0
}

// names returns the releases on the shelf.
func (h *shelf) names() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, r := range h.has {
		all = append(all, fmt.Sprintf("%s@%d", r.Name, r.Number))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// release releases the newest version of a run, or the given version.
func (st *station) release(run string, version int64) *v1.Release {
	st.Helper()
	r, err := st.operator.CreateRelease(st.Context(), &v1.CreateReleaseRequest{Run: run, Version: version, Name: "day"})
	testkit.Must(st, err)
	return r.Release.Release
}

func (st *station) withdraw(name string) {
	st.Helper()
	_, err := st.operator.WithdrawRelease(st.Context(), &v1.WithdrawReleaseRequest{Release: name})
	testkit.Must(st, err)
}

func (st *station) onShelf(h *shelf, want string) {
	st.Helper()
	testkit.Eventually(st, "the agent has "+want, func() bool { return h.names() == want })
}

const accurate = "{algorithm: fedavg, partition: head, rounds: 6, seed: %d, model: {name: fekri2023, lookback: 6, targets: 2, inputs: [load, time_of_day@target], split: {train: 0.7, validation: 0.15}}, client: {steps: 20, batch: 32, lr: 0.01}, evaluate: {every: 2}}"

// TestReleases checks that agents learn about releases, fetch them, and stop using withdrawn
// ones, and that an earlier version can be released again. A run's rounds have the mean
// validation error of all counted clients, which improves.
func TestReleases(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	d := homes(t, 3)
	one, rest := newShelf(), newShelf()
	stop := st.hostFor("one", st.url, firstHomes(t, d, 0, 1), one)
	st.hostFor("rest", st.url, firstHomes(t, d, 1, 3), rest)
	testkit.Eventually(st, "the clients are announced", func() bool {
		n, err := st.ledger.Directory.CountClients(t.Context(), time.Time{})
		return err == nil && n == 3
	})
	var runs []string
	for seed := range 2 {
		run := st.start(fmt.Sprintf(accurate, seed))
		st.finished(run)
		runs = append(runs, run)
		rounds, err := st.ledger.Rounds(t.Context(), run, 0, 100)
		testkit.Must(t, err)
		slices.Reverse(rounds)
		for i, r := range rounds {
			if want := map[bool]int64{true: 3, false: 0}[i%2 == 0 || i == 5]; r.Evaluation.Clients != want {
				t.Errorf("round %d: %d clients evaluated, want %d", i, r.Evaluation.Clients, want)
			}
		}
		first, last := rounds[0].Evaluation.Mean(), rounds[5].Evaluation.Mean()
		t.Logf("relative MAE %.3f before the first round, %.3f before the last", first, last)
		if !(last < 0.8*first) || last <= 0 {
			t.Errorf("relative MAE %.3f before the first round, %.3f before the last", first, last)
		}
	}
	a := st.release(runs[0], 0)
	for _, h := range []*shelf{one, rest} {
		st.onShelf(h, "day@1")
		got := h.has[a.Id]
		b, err := st.blobs.Get(t.Context(), a.Weights)
		testkit.Must(t, err)
		r, err := st.ledger.Run(t.Context(), runs[0])
		testkit.Must(t, err)
		if !bytes.Equal(round.AppendFloats(nil, got.Weights), b) || string(got.Plan) != r.Plan || got.Version != 6 || got.Role != release.Personal || got.Run != runs[0] {
			t.Errorf("another release: %v", got.Version)
		}
	}
	testkit.Eventually(st, "the client's layers are final", func() bool {
		k, ok, err := one.loaders[a.Id]("home-0")
		testkit.Must(t, err)
		return ok && len(k.Scaling) > 0 && len(k.Personal) > 0
	})
	// Rollback: a newer release is withdrawn, and the earlier version is released again.
	st.release(runs[1], 6)
	st.onShelf(one, "day@1 day@2")
	st.onShelf(rest, "day@1 day@2")
	st.withdraw("day@2")
	st.onShelf(one, "day@1")
	stop() // offline
	again := st.release(runs[0], 6)
	if again.Weights != a.Weights || again.Number != 3 || again.Id == a.Id {
		t.Errorf("%v", again)
	}
	st.withdraw(a.Id)
	st.onShelf(rest, "day@3")
	if one.names() != "day@1" {
		t.Errorf("an agent that is offline has %s", one.names())
	}
	st.hostFor("one", st.url, firstHomes(t, d, 0, 1), one)
	st.onShelf(one, "day@3")

	// Reports count once per client and day.
	today := directory.Today(time.Now())
	report := func(client string, mae float64) release.Report {
		return release.Report{
			Client: client, Day: today, Release: again.Id, Shares: map[string]float64{"model": 0.9, "week": 0.1}, RelativeMAE: mae, Coverage: 0.79,
			Findings: []string{"unit-jump"}, WantsRound: true,
		}
	}
	for range 2 {
		one.report(report("home-0", 0.52), report("home-1", 9))
		rest.report(report("home-1", 0.62), release.Report{Client: "home-2", Day: today, RelativeMAE: math.NaN(), Coverage: math.NaN(), Release: "unknown"})
		testkit.Eventually(st, "the reports are sent", func() bool { return one.reported() && rest.reported() })
	}
	days, err := st.operator.ListReports(t.Context(), &v1.ListReportsRequest{Release: again.Id})
	testkit.Must(t, err)
	if len(days.Days) != 1 {
		t.Fatalf("%v", days)
	}
	if x := days.Days[0]; x.Day != today || x.Clients != 2 || x.Total != 3 || x.Wanting != 2 || math.Abs(x.GetRelativeMae()-0.57) > 0.06 || math.Abs(x.GetCoverage()-0.79) > 0.02 || math.Abs(x.GetFallback()-0.1) > 0.02 {
		t.Errorf("%v", x)
	}
	clients, err := st.operator.ListClients(t.Context(), &v1.ListClientsRequest{})
	testkit.Must(t, err)
	for i, want := range []string{"day@3", "day@3", ""} {
		if x := clients.Clients[i]; x.Release != want || x.Reported != today {
			t.Errorf("%v", x)
		}
	}
	agents, err := st.operator.ListAgents(t.Context(), &v1.ListAgentsRequest{Findings: true})
	testkit.Must(t, err)
	if len(agents.Agents) != 2 || agents.Agents[0].Findings != 1 || agents.Agents[1].Findings != 1 {
		t.Errorf("%v", agents)
	}
}

// TestRegionReleases checks that a region's agents get the hub's releases, and that their
// reports reach the hub.
func TestRegionReleases(t *testing.T) {
	t.Parallel()
	hub := newStation(t, nil)
	id, err := identity.Join(t.Context(), filepath.Join(hub.Dir, "region"), hub.url, hub.token(1), "region")
	testkit.Must(t, err)
	t.Cleanup(id.HTTPClient().CloseIdleConnections)
	region := newStation(t, func(c *Config) {
		c.Hub, c.Linger = &Hub{Address: hub.url, Name: id.ID(), Client: id.HTTPClient()}, 50*time.Millisecond
	})
	d := homes(t, 4)
	far := newShelf()
	region.hostFor("far", region.url, firstHomes(t, d, 0, 3), far)
	hub.host("near", hub.url, firstHomes(t, d, 3, 4))
	testkit.Eventually(hub, "the clients are announced", func() bool {
		n, err := hub.ledger.Directory.CountClients(t.Context(), time.Time{})
		return err == nil && n == 4
	})
	run := hub.start(strings.Replace(fmt.Sprintf(accurate, 1), "rounds: 6", "rounds: 3", 1))
	hub.finished(run)
	rounds, err := hub.ledger.Rounds(t.Context(), run, 0, 100)
	testkit.Must(t, err)
	for _, r := range rounds {
		if want := map[bool]int64{true: 4, false: 0}[r.Round != 1]; r.Evaluation.Clients != want || want > 0 && (r.Evaluation.Mean() <= 0 || r.Evaluation.Mean() > 10) {
			t.Errorf("round %d: %+v", r.Round, r.Evaluation)
		}
	}
	a := hub.release(run, 0)
	region.onShelf(far, "day@1")
	if _, err := region.operator.CreateRelease(t.Context(), &v1.CreateReleaseRequest{Run: run}); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("a release in a region: %v", err)
	}
	today := directory.Today(time.Now())
	var reports []release.Report
	for i := range 3 {
		reports = append(reports, release.Report{Client: fmt.Sprint("home-", i), Day: today, Release: a.Id, RelativeMAE: 0.5, Coverage: 0.8, Drift: true})
	}
	far.report(reports...)
	for _, st := range []*station{region, hub} {
		testkit.Eventually(st, "the reports arrive", func() bool {
			days, err := st.operator.ListReports(t.Context(), &v1.ListReportsRequest{Release: a.Id})
			testkit.Must(t, err)
			return len(days.Days) == 1 && days.Days[0].Clients == 3 && days.Days[0].Drifting == 3
		})
	}
	hub.withdraw("day@1")
	region.onShelf(far, "")
	hub.release(run, 0)
	region.onShelf(far, "day@2")
}
