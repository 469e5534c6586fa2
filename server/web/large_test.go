package web

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// timing is a real API that records when it was read.
type timing struct {
	API
	mu    sync.Mutex
	reads map[string][][2]time.Time // start and end times, by kind
}

func (c *timing) note(kind string, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads[kind] = append(c.reads[kind], [2]time.Time{began, time.Now()})
}

func (c *timing) count(kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.reads[kind])
}

func (c *timing) GetFleet(ctx context.Context, r *v1.GetFleetRequest) (*v1.GetFleetResponse, error) {
	defer c.note("fleet", time.Now())
	return c.API.GetFleet(ctx, r)
}

func (c *timing) ListRuns(ctx context.Context, r *v1.ListRunsRequest) (*v1.ListRunsResponse, error) {
	defer c.note("runs", time.Now())
	return c.API.ListRuns(ctx, r)
}

func (c *timing) GetRun(ctx context.Context, r *v1.GetRunRequest) (*v1.GetRunResponse, error) {
	if r.Rounds == 8 { // the topic turns reads one round
		defer c.note("run", time.Now())
	}
	return c.API.GetRun(ctx, r)
}

func (c *timing) ListTurns(ctx context.Context, r *v1.ListTurnsRequest) (*v1.ListTurnsResponse, error) {
	defer c.note("turns", time.Now())
	return c.API.ListTurns(ctx, r)
}

const largePlan = "{name: large, algorithm: fedavg, rounds: 100, schedule: {cohort: 1000}, evaluate: {every: 0}}"

// large is a fleet of 10,000 clients with a run.
type large struct {
	*fixture
	lead ledger.Lead
	run  string
}

const (
	largeAgents = 10
	largeEach   = 1000
)

func newLarge(f *fixture) *large {
	f.Helper()
	ctx, now := f.Context(), time.Now()
	testkit.Must(f, f.ledger.Directory.AddToken(ctx, []byte("token"), directory.Token{Uses: largeAgents, Expires: now.Add(time.Hour)}, "test", now))
	for i := range largeAgents {
		id := fmt.Sprintf("agent%02d-of-the-substation", i)
		testkit.Must(f, f.ledger.Directory.Join(ctx, []byte("token"), directory.Agent{ID: id, Name: "name of " + id, Expires: now.Add(1000 * time.Hour)}, now))
		_, err := f.ledger.Directory.Announce(ctx, directory.Announcement{Agent: id, Clients: largeClients(i), Inputs: []string{"load"}, Step: time.Hour, Most: largeEach}, now)
		testkit.Must(f, err)
	}
	l := &large{fixture: f}
	for range 20 { // the last run is driven
		s, err := f.web.API.StartRun(access.With(ctx, access.Caller{Name: "anna", Role: access.Admin, Via: access.ViaWeb}), &v1.StartRunRequest{Plan: largePlan})
		testkit.Must(f, err)
		l.run = s.Run
	}
	var err error
	l.lead, err = f.ledger.Lead(ctx, "test", time.Hour, now)
	testkit.Must(f, err)
	l.drive(func(x *ledger.Drive) error {
		_, err := x.Begin(ledger.Run{Plan: largePlan}, ledger.Version{Weights: strings.Repeat("w", 64)}, directory.Filter{}, now)
		return err
	})
	return l
}

// largeClients returns the names of an agent's clients.
func largeClients(agent int) (all []string) {
	for i := range largeEach {
		all = append(all, fmt.Sprintf("meter-%02d-%06d", agent, i))
	}
	return all
}

func (l *large) drive(do func(x *ledger.Drive) error) {
	l.Helper()
	testkit.Must(l, l.ledger.Drive(l.Context(), l.lead, l.run, do))
}

// ask opens a round for the first n clients.
func (l *large) ask(round, n int64) {
	l.Helper()
	l.drive(func(x *ledger.Drive) error {
		members := make([]int64, n)
		for i := range members {
			members[i] = int64(i)
		}
		if gone, _, err := x.Ask(ledger.Asking{Round: round, Version: 0, Members: members, Until: time.Now().Add(time.Hour)}); err != nil || len(gone) > 0 {
			return fmt.Errorf("%d are gone: %w", len(gone), err)
		}
		return x.Save("{}", ledger.Round{Round: round, Opened: time.Now(), Asked: n})
	})
}

// abandon closes a round.
func (l *large) abandon(round, asked int64) {
	l.Helper()
	l.drive(func(x *ledger.Drive) error {
		return x.Close(ledger.Round{Round: round, State: ledger.RoundAbandoned, Opened: time.Now(), Closed: time.Now(), Asked: asked, Counted: asked - 1, Lost: 1, Loss: 0.123456789, Bytes: 1 << 30}, "{}", false)
	})
}

// TestLargeFleet checks that with a fleet of 10,000 clients, events stay small, and reading the
// ledger takes only a small part of the time.
func TestLargeFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a ledger with 10,000 clients")
	}
	store := newLedger(t)
	api := &timing{API: newAPI(t, store), reads: map[string][][2]time.Time{}}
	l := newLarge(serve(t, Config{Listen: "127.0.0.1:0"}, api, store))
	size := func(what, topic string, most int) string {
		t.Helper()
		began := time.Now()
		body := string(l.web.hub.read(topic))
		t.Logf("%s: %d bytes, read in %s", what, len(body), time.Since(began).Round(10*time.Microsecond))
		if len(body) > most || !strings.HasPrefix(body, "event: "+topic) {
			t.Errorf("%s: %d bytes, want at most %d: %.200s", what, len(body), most, body)
		}
		return body
	}
	for round := range int64(7) {
		l.ask(round, 1)
		l.abandon(round, 1000)
	}
	l.ask(7, maxTurns)
	arrival := ledger.Arrival{Agent: "agent00-of-the-substation", Round: 7, Bytes: 100}
	for _, c := range largeClients(0)[:500] {
		arrival.Shares = append(arrival.Shares, ledger.Share{Client: c, Examples: 8760, Steps: 100, TrainLoss: 0.123456789})
	}
	_, err := store.Counter.Count(t.Context(), l.run, []ledger.Arrival{arrival}, func([]int) ([]ledger.Partial, []ledger.Single, error) {
		return []ledger.Partial{{Numbers: []byte{1}}}, nil, nil
	})
	testkit.Must(t, err)
	size("fleet", "fleet", 2<<10)
	size("20 runs", "runs", 16<<10)
	size("run with 8 rounds", "run:"+l.run, 8<<10)
	if body := size("1,000 turns, 500 counted", "turns:"+l.run, 256<<10); strings.Count(body, `"counted"`) < 500 {
		t.Error("the turns are not all there")
	}

	// Read at the real pace, for two viewers.
	cookie := l.open("anna", access.Viewer)
	topics := "fleet,runs,run:" + l.run + ",turns:" + l.run
	for range 2 {
		l.look(cookie, topics, "")
	}
	testkit.Eventually(t, "all topics are read again", func() bool {
		return api.count("fleet") > 2 && api.count("runs") > 3 && api.count("run") > 3 && api.count("turns") > 3
	})
	api.mu.Lock()
	for kind, reads := range api.reads {
		for i := 2; i < len(reads); i++ { // the first read is that of size
			cost, rested := reads[i-1][1].Sub(reads[i-1][0]), reads[i][0].Sub(reads[i-1][1])
			if rested < min(restFactor*cost, longestRest) || rested < rests[kind] {
				t.Errorf("%s: rested %s after a read of %s", kind, rested, cost)
			}
		}
	}
	api.mu.Unlock()

	// For a larger round, the page shows only the counts.
	l.abandon(7, maxTurns)
	l.ask(8, largeAgents*largeEach)
	if body := size("10,000 turns", "turns:"+l.run, 1<<10); !strings.Contains(body, "data: {}") {
		t.Errorf("%.200s", body)
	}
	size("run with a round of 10,000", "run:"+l.run, 8<<10)

	// A long plan is not repeated in every event.
	s, err := api.StartRun(access.With(t.Context(), access.Caller{Name: "anna", Role: access.Admin, Via: access.ViaWeb}), &v1.StartRunRequest{Plan: largePlan + "\n" + strings.Repeat("# a comment\n", 80_000)})
	testkit.Must(t, err)
	size("run with a long plan", "run:"+s.Run, 8<<10)
}
