package coordinator

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/internal/testkit"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// other joins another agent and announces clients for it.
func (s *site) other(id string, inputs []string, clients ...string) {
	s.Helper()
	testkit.Must(s, s.Directory.Join(s.Context(), []byte("token"), directory.Agent{ID: id}, s.clock))
	_, err := s.Directory.Announce(s.Context(), directory.Announcement{Agent: id, Clients: clients, Inputs: inputs, Step: time.Hour, Most: 10_000}, s.clock)
	testkit.Must(s, err)
}

func ghosts(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("ghost%04d", i))
	}
	return all
}

// TestSilentClients checks that runs continue if an agent with a thousand clients goes silent
// (attack C3).
func TestSilentClients(t *testing.T) {
	t.Parallel()
	const plan = "algorithm: fedavg\nrounds: 3\nschedule: {cohort: 4, quorum: 1, deadline: 10m}\n" + small
	// finish lets time pass and answers all tasks of the honest agent until the run ends. On a
	// slow machine, the coordinator looks less often.
	finish := func(s *site) {
		for looks := 0; looks < 1000 && s.run("run").State != ledger.Finished; looks++ {
			testkit.Must(t, s.Directory.Seen(t.Context(), []string{agent}, s.clock))
			s.turn()
			s.count(s.tasks("run")...)
			s.turn()
			s.clock = s.clock.Add(lookEvery)
		}
	}
	merged := func(s *site) {
		t.Helper()
		s.wantState("run", ledger.Finished, "")
		if got := s.rounds("run"); strings.Count(got, "merged asked 4 counted 4 late 0 lost 0") != 3 {
			t.Errorf("rounds waited for silent clients:\n%s", got)
		}
	}
	t.Run("before the run begins", func(t *testing.T) {
		s := newSite(t)
		s.seen = 10 * time.Minute
		s.restart()
		s.announce(0, 4)
		s.other("silent", nil, ghosts(1000)...)
		s.clock = s.clock.Add(time.Hour)
		testkit.Must(t, s.Directory.Seen(t.Context(), []string{agent}, s.clock))
		s.add("run", plan, 0)
		finish(s)
		merged(s)
		if r := s.run("run"); r.Fleet != 4 {
			t.Errorf("a fleet of %d, want 4", r.Fleet)
		}
	})
	t.Run("after the run began", func(t *testing.T) {
		s := newSite(t)
		s.seen = 10 * time.Minute
		s.restart()
		s.announce(0, 4)
		s.other("silent", []string{"temperature"}, ghosts(1000)...)
		s.clock = s.clock.Add(seenStored + time.Second) // the coordinator's start no longer excuses silence
		s.add("run", plan, 1004)
		s.turn()
		s.wantState("run", ledger.Running, "")
		if r := s.run("run"); r.Fleet != 1004 {
			t.Fatalf("a fleet of %d", r.Fleet)
		}
		s.clock = s.clock.Add(time.Hour) // the leases of the first round expire
		finish(s)
		if got := s.rounds("run"); strings.Count(got, "merged asked 4 counted 4 late 0 lost 0") != 2 {
			t.Errorf("rounds waited for silent clients:\n%s", got)
		}
		s.wantState("run", ledger.Finished, "")
	})
	t.Run("control: without a time, silent clients are asked", func(t *testing.T) {
		s := newSite(t)
		s.announce(0, 4)
		s.other("silent", nil, ghosts(1000)...)
		s.clock = s.clock.Add(time.Hour)
		s.add("run", plan, 0)
		s.turn()
		if r := s.run("run"); r.Fleet != 1004 {
			t.Errorf("a fleet of %d", r.Fleet)
		}
		if n := len(s.tasks("run")); n == 4 {
			t.Error("only clients that answer were asked")
		}
	})
}

// TestHeldRound checks that an agent that claims forever to be training does not hold a round
// open (attack H1). A plan without a deadline and a quorum gets both.
func TestHeldRound(t *testing.T) {
	t.Parallel()
	const longest = 20 * time.Second
	play := func(longest time.Duration) *site {
		s := newSite(t)
		s.longest = longest
		s.restart()
		s.announce(0, 4)
		s.add("run", "algorithm: fedavg\nrounds: 2\nschedule: {cohort: 4}\n"+small, 0)
		s.turn()
		asked := s.tasks("run")
		s.count(asked[:3]...)
		for range 60 { // a minute in which the last client reports that it trains
			s.clock = s.clock.Add(time.Second)
			testkit.Must(t, s.Counter.Extend(t.Context(), agent, "run", 0, []string{asked[3].Client}, s.clock.Add(lease)))
			s.turn()
		}
		return s
	}
	s := play(longest)
	rounds := strings.Split(s.rounds("run"), "\n")
	if !strings.HasPrefix(rounds[0], "0 of 0 merged asked 4 counted 3 late 0 lost 1 ") || !strings.HasSuffix(rounds[0], " after 25s") {
		t.Errorf("the first round: %s", rounds[0])
	}
	p, err := recipe.Read([]byte(s.run("run").Plan))
	testkit.Must(t, err)
	if time.Duration(p.Schedule.Deadline) != longest+lease || p.Schedule.Quorum != 0.5 {
		t.Errorf("a deadline of %v and a quorum of %v", p.Schedule.Deadline, p.Schedule.Quorum)
	}
	// As a control: without Longest, the round is still open after a minute.
	play(0).wantRounds("run", "0 of 0 open asked 4 counted 3 late 0 lost 0")
}

// TestInputsOfMost checks that one client without inputs does not deprive all others of them
// (attack M2), but is left out and named. If more than a tenth of the clients lack an input,
// the run does not use the input, and names these clients.
func TestInputsOfMost(t *testing.T) {
	t.Parallel()
	const plan = "algorithm: fedavg\nschedule: {cohort: 4}\nmodel: {name: bose2023}\n"
	inputs := func(s *site) string {
		p, err := recipe.Read([]byte(s.run("run").Plan))
		testkit.Must(t, err)
		return strings.Join(p.Model.Inputs, " ")
	}
	s := newSite(t)
	s.announce(0, 19)
	s.other("poor", nil, "poor0")
	s.add("run", plan, 20)
	s.turn()
	s.wantState("run", ledger.Waiting, "19 of at least 20 clients can take part; left out 1 of 20 clients: poor0 lacks temperature")
	s.announce(19, 20)
	s.clock = s.clock.Add(lookEvery)
	s.turn()
	s.wantState("run", ledger.Running, "")
	if r := s.run("run"); r.Fleet != 20 || r.LeftOut != "left out 1 of 21 clients: poor0 lacks temperature" {
		t.Errorf("a fleet of %d, %q", r.Fleet, r.LeftOut)
	}
	if got := inputs(s); got != "load time_of_day day_of_week temperature" {
		t.Errorf("the inputs are %s", got)
	}

	s = newSite(t)
	s.announce(0, 13)
	s.other("poor", nil, ghosts(7)...)
	s.add("run", plan, 0)
	s.turn()
	if got := inputs(s); got != "load time_of_day day_of_week" {
		t.Errorf("the inputs are %s", got)
	}
	if r := s.run("run"); r.Fleet != 20 || r.LeftOut != "temperature is not used, 7 of 20 clients lack it: ghost0000, ghost0001, ghost0002, ghost0003, ghost0004 and 2 more" {
		t.Errorf("a fleet of %d, %q", r.Fleet, r.LeftOut)
	}
}

// TestRollBackRunning rolls back a running run. The open round is abandoned: the updates that
// were counted in it are not merged, its leases end, and its late results do not count. The
// next round begins at once with the earlier weights.
func TestRollBackRunning(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]string{
		"synchronous": "algorithm: fedadam\nrounds: 5\nschedule: {cohort: 4}\n" + small,
		"singles":     "algorithm: fedavgadaptive\nrounds: 5\nschedule: {cohort: 4}\n" + small,
		"buffered":    "algorithm: fedbuff\nrounds: 5\nschedule: {cohort: 4, buffer: 4}\n" + small,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.announce(0, 4)
			s.add("run", plan, 0)
			s.turn()
			first := s.weights("run") // version 0
			for range 2 {
				s.count(s.tasks("run")...)
				s.turn()
			}
			open := s.tasks("run") // tasks of round 2
			if s.run("run").Version != 2 || len(open) != 4 || open[0].Round != 2 {
				t.Fatalf("version %d, tasks %+v", s.run("run").Version, open)
			}
			s.count(open[:2]...)
			s.turn() // the coordinator has seen only one of two batches
			s.count(open[2])
			v, err := s.RollBack(t.Context(), "run", 0, "test", s.clock)
			testkit.Must(t, err)
			if v != 3 || s.run("run").Version != 3 || !bytes.Equal(s.weights("run"), first) {
				t.Fatalf("version %d is not the first", v)
			}
			if s.count(open...) != 0 {
				t.Error("a result of the abandoned round counts")
			}
			s.turn()
			s.turn() // the first turn rereads the run
			tasks := s.tasks("run")
			if len(tasks) != 4 || slices.ContainsFunc(tasks, func(l ledger.Task) bool { return l.Round != 3 || l.Version != 3 }) {
				t.Fatalf("after the rollback, before any time has passed: %+v\n%s", tasks, s.rounds("run"))
			}
			if s.count(open...) != 0 {
				t.Error("a late result of the abandoned round counts")
			}
			for range 2 {
				if n := s.count(s.tasks("run")...); n != 4 {
					t.Errorf("%d of 4 results count", n)
				}
				s.turn()
			}
			s.wantState("run", ledger.Finished, "")
			if r := s.run("run"); r.Version != 5 {
				t.Errorf("the last version is %d, want 5", r.Version)
			}
			testkit.Must(t, s.Partials(t.Context(), "run", 1<<60, func(ledger.Partial) error { t.Error("a sum is left"); return nil }))
			states := s.rounds("run")
			if strings.Count(states, "merged asked 4 counted 4") != 4 || strings.Count(states, "abandoned asked 4 counted 3") != 1 {
				t.Errorf("the rounds are\n%s", states)
			}

			// Now a coordinator that has just started handles the rollback. The same merges
			// without the abandoned round give the same weights.
			again := newSite(t)
			again.announce(0, 4)
			again.add("run", plan, 0)
			again.turn()
			for range 2 {
				again.count(again.tasks("run")...)
				again.turn()
			}
			_, err = again.RollBack(t.Context(), "run", 0, "test", again.clock)
			testkit.Must(t, err)
			again.restart()
			again.turn()
			for range 2 {
				again.count(again.tasks("run")...)
				again.turn()
			}
			if !bytes.Equal(s.weights("run"), again.weights("run")) {
				t.Error("what the abandoned round had counted changed the weights")
			}
		})
	}
}

// TestRollBackDuringMerge checks that a run that is rolled back during the merge of a round
// continues from the earlier version.
func TestRollBackDuringMerge(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]bool{"before the sums are read": true, "before the result is stored": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.announce(0, 4)
			s.add("run", "algorithm: fedavg\nrounds: 4\nschedule: {cohort: 4}\n"+small, 0)
			s.turn()
			first := s.weights("run")
			s.count(s.tasks("run")...)
			s.turn() // version 1
			s.count(s.tasks("run")...)
			back := sync.OnceFunc(func() {
				_, err := s.RollBack(t.Context(), "run", 0, "test", s.clock)
				testkit.Must(t, err)
			})
			d := s.current.drivers["run"]
			merging, err := d.step(t.Context())
			testkit.Must(t, err)
			if merging == nil {
				t.Fatal("the round is not due")
			}
			if early {
				back()
			} else {
				s.current.Blobs = stopper{s.faults, back}
			}
			if err := d.merge(t.Context(), *merging); err == nil {
				t.Error("a merge of an abandoned round was stored")
			}
			s.restart()
			s.turn()
			s.wantState("run", ledger.Running, "")
			if r := s.run("run"); r.Version != 2 || !bytes.Equal(s.weights("run"), first) {
				t.Errorf("version %d is not the first", r.Version)
			}
			for range 2 {
				s.count(s.tasks("run")...)
				s.turn()
			}
			s.wantState("run", ledger.Finished, "")
		})
	}
}
