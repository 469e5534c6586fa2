package coordinator

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loadstar/server/ledger"
)

// A run that an operator stops stays stopped, whatever the state of its round.
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
		must(t, s.StopRun(t.Context(), id, "test", s.clock))
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

// A run that is stopped during a merge does not get the version that is being merged.
func TestStopDuringMerge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", "algorithm: fedavg\nrounds: 3\n"+small, 0)
	s.turn()
	s.count(s.tasks("run")...)
	s.current.Blobs = stopper{s.faults, func() {
		if s.run("run").State == ledger.Running {
			must(t, s.StopRun(t.Context(), "run", "test", s.clock))
		}
	}}
	s.current.tick(t.Context())
	s.wantState("run", ledger.Stopped, "")
	if v := s.run("run").Version; v != 0 {
		t.Errorf("version %d", v)
	}
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

// A run that cannot continue fails with a reason. Other runs continue.
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
	must(t, err)
	defer db.Close()
	_, err = db.Exec("DELETE FROM partials WHERE run = 'tampered'")
	must(t, err)
	s.turn()
	s.wantState("diverges", ledger.Failed, "training diverges")
	s.wantState("tampered", ledger.Failed, "counted 3 updates, but the ledger has 0")
	s.wantState("good", ledger.Running, "")
	if v := s.run("good").Version; v != 1 {
		t.Errorf("version %d", v)
	}
	s.turn()
}

// Blobs are deleted when they are no longer needed, and not before.
func TestRetires(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 6)
	plan := "algorithm: fedbuff\nrounds: 4\nschedule: {cohort: 2, buffer: 1}\n" + small
	s.add("one", plan, 0)
	s.add("two", plan, 0) // has the same initial weights as run one
	s.turn()
	needed := func(id string, more ...int64) {
		t.Helper()
		r := s.run(id)
		for _, version := range append(more, r.Version) {
			v, err := s.Version(t.Context(), id, version)
			must(t, err)
			if _, err := s.blobs.Get(t.Context(), v.Weights); err != nil {
				t.Errorf("version %d of %s: %v", version, id, err)
			}
		}
		for _, b := range []string{r.Server, r.PlanBlob} {
			if _, err := s.blobs.Get(t.Context(), b); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
	step := func(id string, which int) ledger.Task {
		t.Helper()
		l := s.tasks(id)[which]
		s.count(l)
		s.turn()
		return l
	}
	step("one", 1) // the other client of version 0 is still training
	step("one", 1)
	needed("one", 0)
	needed("two")
	if _, err := s.Version(t.Context(), "one", 1); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("version 1 is kept although no client trains from it: %v", err)
	}
	if l := step("one", 0); l.Version != 0 {
		t.Fatalf("%+v", l)
	}
	if _, err := s.Version(t.Context(), "one", 0); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("version 0 is kept: %v", err)
	}
	needed("two") // run two still needs the weights of version 0
	step("one", 0)
	s.turn()
	s.wantState("one", ledger.Finished, "")
	for range 4 {
		step("two", 0)
	}
	s.turn()
	s.wantState("two", ledger.Finished, "")
	needed("one")
	needed("two")
	// The blobs that are still needed are the plan and, for each run, the newest weights
	// and the server's state.
	r1, r2 := s.run("one"), s.run("two")
	want := []string{r1.PlanBlob, r1.Server, r2.Server}
	for _, r := range []ledger.Run{r1, r2} {
		v, err := s.Version(t.Context(), r.ID, r.Version)
		must(t, err)
		want = append(want, v.Weights)
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if got := s.allBlobs(); !slices.Equal(got, want) {
		t.Errorf("%d blobs are left, %d are needed", len(got), len(want))
	}
}
