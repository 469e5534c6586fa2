package coordinator

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/server/ledger"
)

// TestStop checks that a run that an operator stops stays stopped, whatever the state of its
// round.
func TestStop(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	for _, id := range []string{"waiting", "open", "merging"} {
		wanted := int64(0)
		if id == "waiting" {
			wanted = 9
		}
		s.add(id, "algorithm: fedavg\nrounds: 3\nname: "+id+"\n"+small, wanted)
	}
	s.turn()
	s.count(s.tasks("merging")...)
	s.faults.on = true // a fault interrupts the merge of the closed round
	if s.survives(func() { s.current.tick(t.Context()) }) {
		t.Fatal("the merge was not reached")
	}
	if got := s.rounds("merging"); !strings.Contains(got, ledger.RoundMerging) {
		t.Fatal(got)
	}
	for _, id := range []string{"waiting", "open", "merging"} {
		testkit.Must(t, s.StopRun(t.Context(), id, "test", s.clock))
	}
	s.restart()
	for range 3 {
		s.turn()
		s.clock = s.clock.Add(lookEvery)
	}
	for _, id := range []string{"waiting", "open", "merging"} {
		s.wantState(id, ledger.Stopped, "")
		if n := len(s.tasks(id)); n != 0 {
			t.Errorf("%s has %d leases", id, n)
		}
	}
	if len(s.current.drivers) != 0 {
		t.Error("a stopped run is still driven")
	}
}

// TestStopDuringMerge checks that a run that is stopped during a merge does not get the version
// that is being computed.
func TestStopDuringMerge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", "algorithm: fedavg\nrounds: 3\n"+small, 0)
	s.turn()
	s.count(s.tasks("run")...)
	s.current.Blobs = stopper{s.faults, func() {
		if s.run("run").State == ledger.Running {
			testkit.Must(t, s.StopRun(t.Context(), "run", "test", s.clock))
		}
	}}
	s.current.tick(t.Context())
	s.wantState("run", ledger.Stopped, "")
	if v := s.run("run").Version; v != 0 {
		t.Errorf("version %d", v)
	}
}

// TestStopBeforeSumsAreRead checks that a run that an operator stops before the sums of a round
// are read does not fail. The simulation found this fault with seed 9914.
func TestStopBeforeSumsAreRead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 4)
	s.add("run", "algorithm: fedavg\nrounds: 4\nschedule: {cohort: 4}\n"+small, 0)
	s.turn()
	s.count(s.tasks("run")...)
	d := s.current.drivers["run"]
	merging, err := d.step(t.Context())
	testkit.Must(t, err)
	if merging == nil {
		t.Fatal("the round is not due")
	}
	testkit.Must(t, s.StopRun(t.Context(), "run", "test", s.clock))
	stopped := s.run("run")
	testkit.Must(t, d.merge(t.Context(), *merging))
	s.wantState("run", stopped.State, stopped.Reason)
}

// stopper is a store that calls a function before every Put.
type stopper struct {
	*faults
	do func()
}

func (s stopper) Put(ctx context.Context, b []byte) (string, error) {
	s.do()
	return s.faults.Put(ctx, b)
}

// TestFails checks that a run that cannot continue fails with a reason, and that other runs
// continue.
func TestFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("diverges", "algorithm: fedavg\nrounds: 3\nserver: {lr: 1e42}\n"+small, 0)
	s.add("tampered", "algorithm: fedavg\nrounds: 3\n"+small, 0)
	s.add("good", "algorithm: fedavg\nrounds: 3\n"+small, 0)
	s.turn()
	for _, id := range []string{"diverges", "tampered", "good"} {
		s.count(s.tasks(id)...)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "ledger.db")+"?_pragma=busy_timeout(10000)")
	testkit.Must(t, err)
	defer db.Close()
	_, err = db.Exec("DELETE FROM partials WHERE run = 'tampered'")
	testkit.Must(t, err)
	s.turn()
	s.wantState("diverges", ledger.Failed, "training diverges")
	s.wantState("tampered", ledger.Running, "counted 3 updates, but the ledger has 0")
	s.wantState("good", ledger.Running, "")
	if v := s.run("good").Version; v != 1 {
		t.Errorf("version %d", v)
	}
	s.turn()
}

// TestRetires checks that the newest ten versions, and those from which clients train, are kept
// with their server states, and that the blobs of older versions are deleted unless another run
// needs them.
func TestRetires(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 6)
	plan := "algorithm: fedbuff\nrounds: 14\nschedule: {cohort: 2, buffer: 1}\n" + small
	s.add("one", plan, 0)
	s.add("two", plan, 0) // has the same initial weights as run one
	s.turn()
	kept := func(id string) (all []int64) {
		t.Helper()
		versions, err := s.Versions(t.Context(), id)
		testkit.Must(t, err)
		for _, v := range versions {
			all = append(all, v.Version)
			if _, err := s.blobs.Get(t.Context(), v.Weights); err != nil {
				t.Errorf("version %d of %s: %v", v.Version, id, err)
			}
		}
		for _, b := range []string{s.run(id).Server, s.run(id).PlanBlob} {
			if _, err := s.blobs.Get(t.Context(), b); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		slices.Reverse(all)
		return all
	}
	step := func(id string, which int) ledger.Task {
		t.Helper()
		l := s.tasks(id)[which]
		s.count(l)
		s.turn()
		return l
	}
	for range 12 {
		step("one", 1) // the other client of version 0 is still training
	}
	want := []int64{0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	if got := kept("one"); !slices.Equal(got, want) {
		t.Errorf("versions %v of run one are kept, want %v", got, want)
	}
	if l := step("one", 0); l.Version != 0 {
		t.Fatalf("%+v", l)
	}
	if got := kept("one"); !slices.Equal(got, []int64{4, 5, 6, 7, 8, 9, 10, 11, 12, 13}) {
		t.Errorf("versions %v of run one are kept", got)
	}
	if got := kept("two"); !slices.Equal(got, []int64{0}) { // the run still needs the weights of version 0
		t.Errorf("versions %v of run two are kept", got)
	}
	step("one", 0)
	s.turn()
	s.wantState("one", ledger.Finished, "")
	for range 14 {
		step("two", 0)
	}
	s.turn()
	s.wantState("two", ledger.Finished, "")
	// The ledger names exactly the blobs that remain.
	needed, err := s.Blobs(t.Context())
	testkit.Must(t, err)
	slices.Sort(needed)
	if got := s.allBlobs(); !slices.Equal(got, needed) || len(kept("one")) != 10 || len(kept("two")) != 10 {
		t.Errorf("%d blobs are left, %d are needed", len(got), len(needed))
	}
}
