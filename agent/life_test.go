package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"loadstar/agent/state"
	"loadstar/internal/testkit"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

func overwrite(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func countFiles(t testing.TB, dir string) int {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// endless is a plan whose training does not end within a test.
func endless() settings { return small("fedavg", settings{"client.steps": 1 << 30}) }

// TestLongTraining checks that during a long training the agent checks in and reports its
// turns. The training stops at once when its round closes or the agent is stopped.
func TestLongTraining(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	d := meters(t, 3)
	s := newStub(t)
	defer s.http.Close()
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		a.NextContactMs = time.Hour.Milliseconds() // the lease is shorter and determines the interval
		if len(r.Training) == 0 {
			a.NextContactMs = 5
		}
		return nil
	}
	stop := start(t, config(t, "a", s.http.URL, t.TempDir(), d))
	k := s.task(t, "long", 0, endless(), 9, "meter-00", "meter-02")
	k.LeaseMs = 200
	s.give(k)
	named := func(n int) func() bool {
		return func() bool {
			count := 0
			for _, r := range s.checkIns {
				if len(r.Training) == 1 && r.Training[0].Run == "long" && slices.Equal(r.Training[0].Clients, []string{"meter-00", "meter-02"}) {
					count++
				}
			}
			return count >= n
		}
	}
	s.wait(t, "check-ins while training", named(4))
	// Close the round. The agent must then train the next task.
	s.mu.Lock()
	s.over("long", 0)
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		for _, x := range r.Training {
			if x.Run == "long" {
				a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: x.Run, Round: x.Round, Clients: x.Clients, Outcome: loadstarv1.Outcome_OUTCOME_CLOSED})
			}
		}
		return nil
	}
	s.mu.Unlock()
	s.give(s.task(t, "short", 0, small("fedavg", nil), 9, "meter-01"))
	s.pushed(t, "short", 0)
	// Stop the agent during another long training run.
	s.mu.Lock()
	s.checkIn = nil
	s.mu.Unlock()
	s.give(s.task(t, "long", 1, endless(), 9, "meter-00"))
	s.mu.Lock()
	s.checkIns = nil
	s.mu.Unlock()
	s.wait(t, "training", func() bool {
		return len(s.checkIns) > 3 && len(s.checkIns[len(s.checkIns)-1].Training) == 1
	})
	stop() // must not wait for the training to end
}

func TestRevoked(t *testing.T) {
	d := meters(t, 1)
	s := newStub(t)
	var real atomic.Bool
	calls := 0
	s.serve = func(w http.ResponseWriter, r *http.Request) bool {
		if !real.Load() { // this server acts as a proxy that refuses the agent
			http.Error(w, "forbidden", http.StatusForbidden)
		}
		return !real.Load()
	}
	s.checkIn = func(*loadstarv1.ExchangeRequest, *loadstarv1.ExchangeResponse) error {
		if calls++; calls < 4 {
			return connect.NewError(connect.CodeUnauthenticated, errors.New("who knows"))
		}
		return connect.NewError(connect.CodePermissionDenied, errors.New("revoked"))
	}
	done := make(chan error, 1)
	go func() { done <- Run(context.Background(), config(t, "a", s.http.URL, t.TempDir(), d)) }()
	select {
	case err := <-done:
		t.Fatalf("it gave up: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	real.Store(true)
	select {
	case err := <-done:
		if !errors.Is(err, ErrRevoked) || !strings.Contains(err.Error(), "revoked") || calls != 4 {
			t.Errorf("after %d calls: %v", calls, err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a revoked agent goes on")
	}
}

func TestLocked(t *testing.T) {
	d := meters(t, 1)
	s := newStub(t)
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	stop := start(t, c)
	s.wait(t, "check-in", func() bool { return len(s.checkIns) > 0 })
	err := Run(context.Background(), c)
	if !errors.Is(err, state.ErrLocked) || !strings.Contains(err.Error(), c.Dir) {
		t.Error(err)
	}
	stop()
	if err := Run(expired(), c); err != nil {
		t.Error(err)
	}
}

func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestServerAway checks that an agent keeps trying to reach a server that is down at the start
// or goes down later.
func TestServerAway(t *testing.T) {
	d := meters(t, 1)
	s := newStub(t)
	address := testkit.AddressFor(t)
	stop := start(t, config(t, "a", "http://"+address, t.TempDir(), d))
	for i := range int64(3) {
		time.Sleep(60 * time.Millisecond)
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: s}
		go server.Serve(l) // returns an error when the test closes the server
		s.give(s.task(t, "run", i, small("fedavg", settings{"partition": "head"}), 9, "meter-00"))
		s.pushed(t, "run", i)
		server.Close()
	}
	stop()
}

func TestRenewal(t *testing.T) {
	d := meters(t, 1)
	s := newStub(t)
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	var looks atomic.Int64
	c.Renew = func(_ context.Context, now time.Time) (bool, error) {
		if time.Since(now) > time.Minute {
			t.Error("another time than now")
		}
		n := looks.Add(1)
		if n%3 == 0 {
			return false, errors.New("not now")
		}
		return n%2 == 0, nil
	}
	stop := start(t, c)
	s.wait(t, "looks at the certificate", func() bool { return looks.Load() > 7 })
	stop()
}

// TestOddServer checks that an agent tolerates a server that gives unexpected answers about
// results.
func TestOddServer(t *testing.T) {
	d := meters(t, 2)
	s := newStub(t)
	odd := []*loadstarv1.Received{
		{Outcome: loadstarv1.Outcome_OUTCOME_PART, NextOffset: -5},
		{Outcome: loadstarv1.Outcome_OUTCOME_PART, NextOffset: 1 << 60},
		{Outcome: loadstarv1.Outcome_OUTCOME_UNSPECIFIED},
		{Outcome: 99},
		nil,
		{Outcome: loadstarv1.Outcome_OUTCOME_UNKNOWN},
	}
	// After these responses, the server asks for the same chunk many times.
	for range 40 {
		odd = append(odd, &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART})
	}
	s.push = func(r *loadstarv1.Result) (*loadstarv1.Received, error) {
		if len(odd) > 0 {
			a := odd[0]
			odd = odd[1:]
			if a == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no"))
			}
			return a, nil
		}
		s.over(r.Run, r.Round)
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_ACCEPTED}, nil
	}
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		a.NextContactMs = []int64{-1 << 62, 5, 1 << 62}[min(len(s.checkIns)%7, 1)]
		a.NextContactMs = max(a.NextContactMs, 5)
		for _, x := range r.Pushed {
			o := loadstarv1.Outcome_OUTCOME_UNKNOWN
			if len(odd) == 0 {
				o = loadstarv1.Outcome_OUTCOME_COUNTED
			}
			a.Verdicts = append(a.Verdicts,
				&loadstarv1.Verdict{Run: "no such run", Clients: x.Clients, Outcome: loadstarv1.Outcome_OUTCOME_COUNTED},
				&loadstarv1.Verdict{Run: x.Run, Round: x.Round, Outcome: 77, Clients: []string{"nobody", x.Clients[0]}},
				&loadstarv1.Verdict{Run: x.Run, Round: x.Round, Outcome: o, Clients: append(x.Clients, "nobody")},
				&loadstarv1.Verdict{Run: x.Run, Round: x.Round, Outcome: o, Clients: x.Clients})
		}
		return nil
	}
	dir := t.TempDir()
	stop := start(t, config(t, "a", s.http.URL, dir, d))
	s.give(s.task(t, "run", 4, small("fedavg", settings{"partition": "head"}), 9, "meter-00", "meter-01"))
	s.wait(t, "two results that are counted", func() bool {
		n := len(s.checkIns)
		return len(odd) == 0 && len(s.tasks) == 0 && n > 3 && len(s.checkIns[n-1].Pushed)+len(s.checkIns[n-1].Training) == 0
	})
	stop()
	k, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	p, err := newSessionOf(t, d, small("fedavg", settings{"partition": "head"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range namesOf(d) {
		if got, err := k.Load("run", name, make([]float32, len(p.initial))); err != nil || got.First || got.Round != 4 {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// TestOneFateAfterTheOther checks that a client does not train again for a round in which its
// update was counted. A client with an undecided result waits, even if the server assigns
// another round.
func TestOneFateAfterTheOther(t *testing.T) {
	d := meters(t, 2)
	s := newStub(t)
	stop := start(t, config(t, "a", s.http.URL, t.TempDir(), d))
	plan := small("fedavg", settings{"partition": "head"})
	s.give(s.task(t, "run", 4, plan, 9, "meter-00"))
	s.pushed(t, "run", 4)
	s.give(s.task(t, "run", 4, plan, 9, "meter-00"))
	if reason := s.declined(t, "run"); !strings.Contains(reason, "counted in round 5") {
		t.Error(reason)
	}
	s.mu.Lock()
	s.push = func(r *loadstarv1.Result) (*loadstarv1.Received, error) {
		s.over(r.Run, r.Round)
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_ACCEPTED}, nil
	}
	var decided bool
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		for _, x := range r.Pushed {
			if decided {
				a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: x.Run, Round: x.Round, Clients: x.Clients, Outcome: loadstarv1.Outcome_OUTCOME_CLOSED})
			}
		}
		return nil
	}
	s.mu.Unlock()
	s.give(s.task(t, "run", 5, plan, 9, "meter-00"))
	s.wait(t, "a push", func() bool { return s.pushes[len(s.pushes)-1].Round == 5 })
	s.give(s.task(t, "run", 6, plan, 9, "meter-00"))
	s.give(s.task(t, "run", 7, plan, 9, "meter-00", "meter-01")) // replaces round 6
	s.wait(t, "the other client", func() bool { return s.pushes[len(s.pushes)-1].Round == 7 })
	time.Sleep(50 * time.Millisecond)
	s.mu.Lock()
	for _, r := range s.pushes {
		if r.Round > 5 && r.Shares[0].Client == "meter-00" {
			t.Errorf("a client was trained for round %d without knowing what it keeps", r.Round)
		}
	}
	s.over("run", 6)
	decided = true
	s.mu.Unlock()
	s.wait(t, "the client that waited", func() bool {
		r := s.pushes[len(s.pushes)-1]
		return r.Round == 7 && r.Shares[0].Client == "meter-00"
	})
	stop()
}

// TestForgottenRuns checks that the agent stores the values of only the most recent runs. It
// declines further tasks of a run whose values it has deleted.
func TestForgottenRuns(t *testing.T) {
	d := meters(t, 1)
	s := newStub(t)
	dir := t.TempDir()
	stop := start(t, config(t, "a", s.http.URL, dir, d))
	plan := small("fedavg", settings{"partition": "head"})
	for i := range 12 {
		run := fmt.Sprint("run ", i)
		s.give(s.task(t, run, 0, plan, 9, "meter-00"))
		s.pushed(t, run, 0)
	}
	s.give(s.task(t, "run 0", 1, plan, 9, "meter-00"))
	if reason := s.declined(t, "run 0"); !strings.Contains(reason, "too many runs") {
		t.Error(reason)
	}
	s.give(s.task(t, "run 11", 1, plan, 9, "meter-00"))
	s.pushed(t, "run 11", 1)
	stop()
	if info, err := os.Stat(filepath.Join(dir, "agent.db")); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

// TestRejected checks that an agent does not train a turn again after the server has rejected
// its result.
func TestRejected(t *testing.T) {
	d := meters(t, 3)
	s := newStub(t)
	s.push = func(*loadstarv1.Result) (*loadstarv1.Received, error) {
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_REJECTED, Reason: "no"}, nil
	}
	dir := t.TempDir()
	stop := start(t, config(t, "a", s.http.URL, dir, d))
	k := s.task(t, "run", 4, small("fedavg", settings{"partition": "head"}), 9, namesOf(d)...)
	k.Fold = true
	s.give(k)
	if reason := s.declined(t, "run"); !strings.Contains(reason, "rejected") {
		t.Error(reason)
	}
	s.wait(t, "quiet", func() bool {
		n := len(s.checkIns)
		return len(s.tasks) == 0 && len(s.checkIns[n-1].Pushed)+len(s.checkIns[n-1].Training) == 0
	})
	stop()
	if len(s.pushes) != 1 || len(s.declines) != 1 || len(s.declines[0].Turns.Clients) != 3 {
		t.Errorf("%d pushes, declined %v", len(s.pushes), s.declines)
	}
	k2, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer k2.Close()
	if got, err := k2.Load("run", "meter-01", nil); err != nil || !got.First {
		t.Error(got, err)
	}
}

// TestDamagedResult checks that if an agent finds a result damaged on its disk, it asks the
// server whether the result arrived, and then trains the clients again.
func TestDamagedResult(t *testing.T) {
	d := meters(t, 3)
	s := newStub(t)
	away := connect.NewError(connect.CodeUnavailable, errors.New("away"))
	s.push = func(*loadstarv1.Result) (*loadstarv1.Received, error) { return nil, away }
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		for _, x := range r.Pushed {
			a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: x.Run, Round: x.Round, Clients: x.Clients, Outcome: loadstarv1.Outcome_OUTCOME_UNKNOWN})
		}
		return nil
	}
	dir := t.TempDir()
	c := config(t, "a", s.http.URL, dir, d)
	c.Chunk = 1 << 20 // sends a result in a single request
	stop := start(t, c)
	s.give(s.task(t, "run", 4, small("fedavg", settings{"partition": "head"}), 9, "meter-01"))
	want := s.pushed(t, "run", 4).Chunk
	stop()
	s.http.Close() // a call of the stopped agent may still be served
	s.http = httptest.NewServer(s)
	defer s.http.Close()
	c.Server = s.http.URL

	path := filepath.Join(dir, "agent.db")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(want)
	damaged[1] ^= 4
	if !bytes.Contains(file, want) {
		t.Fatal("the result is not in the file")
	}
	file = bytes.ReplaceAll(file, want, damaged) // bbolt may have copies in free pages
	overwrite(t, path, file)
	s.mu.Lock()
	s.pushes, s.push = nil, nil
	s.mu.Unlock()
	log := &lines{}
	c.Log = slog.New(slog.NewTextHandler(log, nil))
	stop = start(t, c)
	if got := s.pushed(t, "run", 4).Chunk; !bytes.Equal(got, want) {
		t.Error("the clients have trained another result")
	}
	s.wait(t, "an end", func() bool { return len(s.tasks) == 0 })
	stop()
	if text := log.wait(t, "dropped a damaged result"); !strings.Contains(text, path) {
		t.Error(text)
	}
}

// TestOvertaken checks that a turn that a later round replaces is removed from its job, even if
// its round has another job.
func TestOvertaken(t *testing.T) {
	d := newWorklist([]string{"a", "b"}, nil)
	for _, x := range []*loadstarv1.Task{{Run: "run", Clients: []string{"a"}}, {Run: "run", Clients: []string{"b"}}, {Run: "run", Round: 1, Clients: []string{"b"}}} {
		d.add(x)
	}
	var got []string
	for j := d.take(); j != nil; j = d.take() {
		got = append(got, fmt.Sprint(j.GetRound(), j.clients))
	}
	if want := []string{"0 [a]", "1 [b]"}; !slices.Equal(got, want) {
		t.Errorf("trained %v, want %v", got, want)
	}
}

func TestJitter(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 2000 {
		j := jitter(rand.Int64N, time.Minute)
		low, high = min(low, j), max(high, j)
	}
	if low < 54*time.Second || high > 66*time.Second || low > 55*time.Second || high < 65*time.Second {
		t.Error(low, high)
	}
}

// TestOffers checks that an agent calls again when the server asks it to, if the server cannot
// accept its result now. It first sends the head of the result, and the numbers once the server
// requests them.
func TestOffers(t *testing.T) {
	d := meters(t, 2)
	s := newStub(t)
	var since time.Time // first time that the server did not accept a result
	const next, away = 200 * time.Millisecond, time.Second
	offers, early := 0, 0
	s.push = func(r *loadstarv1.Result) (*loadstarv1.Received, error) {
		whole := r.Offset+int64(len(r.Chunk)) == r.Size
		switch {
		case len(r.Chunk) == 0:
			offers++
		case !whole:
			return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART, NextOffset: r.Offset + int64(len(r.Chunk))}, nil
		case since.IsZero():
			since = time.Now()
		case time.Since(since) < away:
			early++
		}
		switch {
		case time.Since(since) < away:
			return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_UNKNOWN, Reason: "a keeper does not answer"}, nil
		case !whole:
			return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART}, nil
		}
		s.over(r.Run, r.Round)
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_COUNTED}, nil
	}
	s.checkIn = func(q *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		if q.Result != nil && !since.IsZero() && time.Since(since) < away {
			a.NextContactMs = next.Milliseconds()
		}
		return nil
	}
	s.give(s.task(t, "run", 0, small("fedavg", nil), 9, namesOf(d)...))
	defer start(t, config(t, "a", s.http.URL, t.TempDir(), d))()
	s.wait(t, "two results", func() bool { return len(s.tasks) == 0 && !since.IsZero() })
	s.mu.Lock()
	defer s.mu.Unlock()
	// The second result may be trained after the first one was sent, which causes one more call.
	if most := int(away/next)*5/4 + 2; offers < 2 || offers > most || early > 0 {
		t.Errorf("%d heads, want 2 to %d, and %d results with numbers while the server takes none", offers, most, early)
	}
}
