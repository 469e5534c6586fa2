package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/fed/recipe"
	"loadstar/internal/testkit"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// TestBegin checks that a run waits until there are enough clients, and then begins with the
// clients that exist at that time and fixes every value of its plan.
func TestBegin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.reach = 7 * time.Minute
	s.announce(0, 2)
	s.add("run", "algorithm: fedavg\nmodel: {name: bose2023}\n", 3)
	for range 3 {
		s.turn()
		s.clock = s.clock.Add(lookEvery)
	}
	s.wantState("run", ledger.Waiting, "2 of at least 3 clients can take part")
	s.announce(2, 3)
	s.turn()
	s.wantState("run", ledger.Running, "")
	s.announce(3, 9) // announced after the run began, so not members of the run
	r := s.run("run")
	p, err := recipe.Read([]byte(r.Plan))
	testkit.Must(t, err)
	if r.Fleet != 3 || p.Schedule.Cohort != 3 || strings.Join(p.Model.Inputs, " ") != "load time_of_day day_of_week temperature" {
		t.Errorf("a fleet of %d, and the plan\n%s", r.Fleet, r.Plan)
	}
	if b, err := s.blobs.Get(t.Context(), r.PlanBlob); err != nil || string(b) != r.Plan {
		t.Errorf("agents get the plan %q, %v", b, err)
	}
	if !r.Started.Equal(s.clock) {
		t.Errorf("started at %v, want %v", r.Started, s.clock)
	}
	tasks := s.tasks("run")
	if len(tasks) != 3 || tasks[2].Client != client(2) || tasks[0].Version != 0 || !tasks[0].Until.Equal(s.clock.Add(lease+s.reach)) {
		t.Errorf("%+v", tasks)
	}
	s.wantRounds("run", "0 of 0 open asked 3 counted 0 late 0 lost 0")
	if n := len(s.weights("run")); n != 4*s.terms("run").Shared {
		t.Errorf("%d bytes of weights", n)
	}
}

// TestCannotBegin checks that a run whose plan the fleet cannot train fails with a reason and
// does not block other runs.
func TestCannotBegin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("bad", "algorithm: fedavg\nmodel: {name: bose2023, inputs: [load, wind]}\n", 0)
	s.add("unreadable", "algorithm: fedmagic\n", 0)
	s.add("good", "algorithm: fedavg\n"+small, 0)
	s.turn()
	s.wantState("bad", ledger.Failed, "no wind")
	s.wantState("unreadable", ledger.Failed, "fedmagic")
	s.wantState("good", ledger.Running, "")
	_, err := s.Directory.Announce(t.Context(), directory.Announcement{Agent: agent, Clients: []string{"quick"}, Step: time.Minute, Most: 1000}, s.clock)
	testkit.Must(t, err)
	s.add("mixed", "algorithm: fedavg\n"+small, 0)
	s.turn()
	s.wantState("mixed", ledger.Failed, "1m0s 1h0m0s")
}

// script is a plan and the behaviour of its fleet: whether a client returns its task, and after
// how many seconds.
type script struct {
	plan  string
	delay func(no int, round int64) (seconds int, returns bool)
}

func prompt(int, int64) (int, bool) { return 0, true }

// uneven is the behaviour of a fleet in which clients return tasks after different times, or
// never.
func uneven(no int, round int64) (int, bool) {
	x := (no*5 + int(round)*3) % 11
	return x % 4, x != 10
}

var scripts = map[string]script{
	"synchronous":      {"algorithm: fedadam\nrounds: 4\nschedule: {cohort: 6}\n" + small, prompt},
	"losses":           {"algorithm: fedavgm\nrounds: 4\nschedule: {cohort: 6, over_selection: 0.5, quorum: 0.7, deadline: 4s}\n" + small, uneven},
	"control variates": {"algorithm: scaffold\nrounds: 3\nschedule: {cohort: 4}\n" + small, uneven},
	"each update":      {"algorithm: fedavgadaptive\nrounds: 3\nschedule: {cohort: 4}\n" + small, prompt},
	"server data":      {"algorithm: fedsim\nrounds: 4\nschedule: {cohort: 4}\nserver: {batch: 16}\nclient: {steps: 2, batch: 4}\n" + small, prompt},
	"server's layers":  {"algorithm: fedsim\npartition: head\nrounds: 4\nschedule: {cohort: 4}\nserver: {batch: 16}\nclient: {steps: 2, batch: 4, optimizer: proxadam, moments: kept}\n" + small, prompt},
	"buffered":         {"algorithm: fedbuff\nrounds: 5\nschedule: {cohort: 5, buffer: 3}\nserver: {optimizer: fedyogi}\n" + small, uneven},
	"eager":            {"algorithm: fedasync\nrounds: 6\nschedule: {cohort: 3}\n" + small, uneven},
	"periodic":         {"algorithm: fednorm\nrounds: 4\nschedule: {kind: periodic, cohort: 5, period: 2s}\nmodel: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}\nevaluate: {every: 0}\n", uneven},
	"periodic sums":    {"algorithm: fedbuff\nrounds: 4\nschedule: {kind: periodic, cohort: 5, period: 2s}\n" + small, uneven},
}

// play runs a script second by second. It calls between in each second and after each
// counted batch.
func (s *site) play(x script, between func()) (weights []byte, rounds string) {
	s.Helper()
	s.announce(0, 12)
	s.add("run", x.plan, 0)
	s.turn()
	given := map[string]time.Time{}
	for second := 0; s.run("run").State == ledger.Running; second++ {
		if second > 300 {
			s.Fatalf("no end in sight:\n%s", s.rounds("run"))
		}
		for _, l := range s.tasks("run") {
			key := fmt.Sprint(l.Round, l.Client)
			if _, ok := given[key]; !ok {
				given[key] = s.clock
			}
			var no int
			fmt.Sscanf(l.Client, "c%d", &no) // the names of clients are c0, c1 and so on
			if wait, returns := x.delay(no, l.Round); returns && s.clock.Sub(given[key]) >= time.Duration(wait)*time.Second {
				if s.count(l) == 1 {
					between()
					s.turn()
				}
			}
		}
		s.clock = s.clock.Add(time.Second)
		between()
		s.turn()
	}
	s.wantState("run", ledger.Finished, "")
	return s.weights("run"), s.rounds("run")
}

// TestRecovers checks that a run gives the same result, however often and at whatever point
// coordinators die.
func TestRecovers(t *testing.T) {
	for name, x := range scripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			want, rounds := s.play(x, func() {})
			if !strings.Contains(rounds, ledger.RoundMerged) {
				t.Fatalf("nothing was merged:\n%s", rounds)
			}
			left := len(s.allBlobs())
			for kind, disturb := range map[string]func(s *site){
				"forgetful": func(s *site) { s.restart() },
				"dying and taken over": func(s *site) {
					s.faults.on = true
					s.name += "'"
					s.resign()
				},
			} {
				d := newSite(t)
				got, disturbed := d.play(x, func() { disturb(d) })
				if !bytes.Equal(got, want) {
					t.Errorf("%s: other weights", kind)
				}
				if disturbed != rounds {
					t.Errorf("%s: other rounds\n%swant\n%s", kind, disturbed, rounds)
				}
				// A process that is killed may leave unused blobs. A restart between
				// operations must not.
				if kind == "forgetful" && len(d.allBlobs()) != left {
					t.Errorf("%s: %d blobs are left, want %d", kind, len(d.allBlobs()), left)
				}
				if d.faults.on && len(d.faults.met) < 10 {
					t.Errorf("%s: died only %d times", kind, len(d.faults.met))
				}
			}
		})
	}
}

// resign releases the lead, so that a coordinator with another name can take it.
func (s *site) resign() {
	s.current.resign(s.Context())
	s.restart()
}

// TestLostTurns checks that a turn whose lease expires is lost. If enough results for the
// quorum arrive, the round is merged without it. Otherwise the round and its updates are
// discarded.
func TestLostTurns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 4)
	s.add("run", "algorithm: fedavg\nrounds: 3\nschedule: {cohort: 4, quorum: 0.5, deadline: 1m}\n"+small, 0)
	s.turn()
	s.count(s.tasks("run")[0])
	s.clock = s.clock.Add(lease - time.Millisecond)
	s.turn()
	s.wantRounds("run", "0 of 0 open asked 4 counted 1 late 0 lost 0")
	before := s.weights("run")
	s.clock = s.clock.Add(lookEvery)
	s.turn()
	s.wantRounds("run",
		"0 of 0 abandoned asked 4 counted 1 late 0 lost 3 loss 1.0000 after 5.999s",
		"1 of 0 open asked 4 counted 0 late 0 lost 0")
	if !bytes.Equal(s.weights("run"), before) || s.run("run").Version != 0 {
		t.Error("an abandoned round changed the weights")
	}
	testkit.Must(t, s.Partials(t.Context(), "run", 1<<60, func(ledger.Partial) error {
		t.Error("an update of an abandoned round is kept")
		return nil
	}))
	s.count(s.tasks("run")[1:3]...)
	s.clock = s.clock.Add(lease)
	s.turn()
	s.wantRounds("run",
		"0 of 0 abandoned asked 4 counted 1 late 0 lost 3 loss 1.0000 after 5.999s",
		"1 of 0 merged asked 4 counted 2 late 0 lost 2 loss 0.5000 after 5s",
		"2 of 1 open asked 3 counted 0 late 0 lost 0")
	// Lost clients are asked again in the next round, except a client that was lost twice in a
	// row.
	if tasks := s.tasks("run"); len(tasks) != 3 || tasks[0].Round != 2 || tasks[0].Version != 1 || tasks[2].Client == client(3) {
		t.Errorf("%+v", tasks)
	}
	s.count(s.tasks("run")...)
	s.turn()
	s.wantState("run", ledger.Finished, "")
}

// TestNothingTrained checks that a run fails if none of its rounds had enough results.
func TestNothingTrained(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 4)
	s.add("run", "algorithm: fedavg\nrounds: 2\nschedule: {cohort: 4, quorum: 0.5, deadline: 1m}\n"+small, 0)
	for range 3 {
		s.turn()
		s.clock = s.clock.Add(lease + lookEvery)
	}
	s.turn()
	s.wantState("run", ledger.Failed, "no round had enough results, so nothing was trained")
}

// TestDeadline checks that with over-selection, a round closes without its slowest clients, and
// that at the deadline, a round closes with the results that it has.
func TestDeadline(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 9)
	s.add("run", "algorithm: fedavg\nrounds: 2\nschedule: {cohort: 4, over_selection: 0.5, quorum: 0.5, deadline: 3s}\n"+small, 0)
	s.turn()
	asked := s.tasks("run")
	if len(asked) != 6 {
		t.Fatalf("%d were asked", len(asked))
	}
	s.count(asked[:3]...)
	s.turn()
	// Both are counted before the coordinator reads the ledger.
	if n := s.count(asked[3], asked[4]); n != 2 {
		t.Fatal(n)
	}
	s.turn()
	s.wantRounds("run",
		"0 of 0 merged asked 6 counted 5 late 1 lost 0 loss 1.0000 after 0s",
		"1 of 1 open asked 6 counted 0 late 0 lost 0")
	if n := s.count(asked[5]); n != 0 {
		t.Error("a late update was counted")
	}
	where, err := s.Counter.Standings(t.Context(), agent, "run", 0, []string{asked[4].Client, asked[5].Client})
	testkit.Must(t, err)
	if where[asked[4].Client].State != ledger.Counted || where[asked[5].Client].State != ledger.Closed {
		t.Errorf("%+v", where)
	}
	s.count(s.tasks("run")[:2]...)
	s.clock = s.clock.Add(3*time.Second - time.Millisecond)
	s.turn()
	s.wantState("run", ledger.Running, "")
	s.clock = s.clock.Add(time.Millisecond)
	s.turn()
	s.wantState("run", ledger.Finished, "")
	if got := s.rounds("run"); !strings.Contains(got, "1 of 1 merged asked 6 counted 2 late 4 lost 0 loss 0.5000 after 3s") {
		t.Error(got)
	}
}

// TestRevoked checks that a round does not wait for revoked clients or declined turns.
func TestRevoked(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", "algorithm: fedavg\nrounds: 2\n"+small, 0)
	s.turn()
	testkit.Must(t, s.Directory.RevokeClient(t.Context(), client(0), "test", s.clock))
	testkit.Must(t, s.Counter.Decline(t.Context(), agent, "run", 0, []string{client(1)}, "", ""))
	s.count(s.tasks("run")...)
	s.turn()
	s.wantRounds("run",
		"0 of 0 merged asked 3 counted 1 late 0 lost 2 loss 1.0000 after 0s",
		"1 of 1 open asked 3 counted 0 late 0 lost 1")
	if tasks := s.tasks("run"); len(tasks) != 2 {
		t.Errorf("a revoked client is asked: %+v", tasks)
	}
	testkit.Must(t, s.Directory.RevokeAgent(t.Context(), agent, "test", s.clock))
	s.clock = s.clock.Add(lookEvery)
	s.turn()
	s.turn()
	s.wantState("run", ledger.Finished, "")
}

// TestTakeover checks that of two coordinators, one leads, and the other takes over when the
// lead is released or expires. A former leader that was suspended and resumes can no longer
// write.
func TestTakeover(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", "algorithm: fedavg\nrounds: 3\n"+small, 0)
	a, b := s.coordinator("a"), s.coordinator("b")
	a.tick(t.Context())
	b.tick(t.Context())
	if len(a.drivers) != 1 || len(b.drivers) != 0 {
		t.Fatalf("%d and %d runs are driven", len(a.drivers), len(b.drivers))
	}
	s.count(s.tasks("run")...)
	s.clock = s.clock.Add(lead * 3 / 4)
	b.tick(t.Context())
	if s.run("run").Version != 0 {
		t.Fatal("the coordinator without the lead drove the run")
	}
	s.clock = s.clock.Add(lead / 4) // the interval between its attempts to take the lead
	b.tick(t.Context())
	if s.run("run").Version != 1 || b.lead.Epoch <= a.lead.Epoch {
		t.Fatalf("version %d, epochs %d and %d", s.run("run").Version, a.lead.Epoch, b.lead.Epoch)
	}
	// The first coordinator resumes and believes that it still leads.
	a.until, a.renew = s.clock.Add(lead), s.clock.Add(lead/3)
	s.count(s.tasks("run")...)
	a.tick(t.Context())
	if s.run("run").Version != 1 || len(a.drivers) != 0 {
		t.Error("a deposed coordinator drove the run")
	}
	a.tick(t.Context())
	b.tick(t.Context())
	if s.run("run").Version != 2 {
		t.Error("the leader does not continue")
	}
	// A coordinator that shuts down releases the lead at once.
	s.count(s.tasks("run")...)
	b.resign(t.Context())
	s.clock = s.clock.Add(lead / 3)
	a.tick(t.Context())
	s.wantState("run", ledger.Finished, "")
}

// TestRun checks that Run drives a run from start to end, even after the channel of
// notifications is closed.
func TestRun(t *testing.T) {
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", "algorithm: fedavg\nrounds: 3\n"+small, 0)
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan string)
	close(woken)
	var wakes atomic.Int64
	ended := make(chan error)
	go func() {
		ended <- Run(ctx, Config{
			Ledger: s.Ledger, Blobs: s.blobs, Name: "a", Lease: time.Minute, Reach: func(int64) time.Duration { return 0 }, Lead: time.Minute, Poll: 10 * time.Millisecond,
			Wake: func(string) { wakes.Add(1) }, Woken: woken, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		})
	}()
	s.clock = time.Now()
	for end := time.Now().Add(5 * time.Minute); s.run("run").State != ledger.Finished; time.Sleep(5 * time.Millisecond) {
		s.count(s.tasks("run")...)
		if time.Now().After(end) {
			t.Fatalf("the run does not finish:\n%s", s.rounds("run"))
		}
	}
	cancel()
	testkit.Must(t, <-ended)
	if wakes.Load() < 3 {
		t.Errorf("sent %d notifications", wakes.Load())
	}
	if _, err := s.Lead(t.Context(), "b", time.Minute, time.Now()); err != nil {
		t.Errorf("the lead was not released: %v", err)
	}
}
