package state

import (
	"fmt"
	"slices"
	"testing"
)

// TestTasks checks that the tasks of a client's counted and undecided results are found, that
// only the newest ones are kept, and that they are deleted with their run.
func TestTasks(t *testing.T) {
	s := open(t, t.TempDir())
	tasks := func(client, wantRun string, wantPending bool, want ...string) {
		t.Helper()
		run, found, pending, err := s.Tasks(client)
		var got []string
		for _, x := range found {
			got = append(got, string(x))
		}
		if err != nil || len(want) > 0 && run != wantRun || pending != wantPending || !slices.Equal(got, want) {
			t.Errorf("%s: run %s, tasks %q, pending %v: %v", client, run, got, pending, err)
		}
	}
	train := func(run, client string, round int64) uint64 {
		t.Helper()
		g, err := s.Stage(run, client, []float32{1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Remember(run, round, fmt.Appendf(nil, "%s %d", run, round)); err != nil {
			t.Fatal(err)
		}
		r, err := s.Put(run, round, []Staged{g}, nil, []byte("numbers"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	decide := func(counted, dropped []uint64) {
		t.Helper()
		if err := s.Decide(counted, dropped); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(run string) {
		t.Helper()
		if _, err := s.Begin(run); err != nil {
			t.Fatal(err)
		}
	}
	begin("first")
	tasks("a", "", false)
	decide([]uint64{train("first", "a", 0)}, []uint64{train("first", "b", 0)})
	id := train("first", "a", 1)
	tasks("a", "first", true, "first 1", "first 0")
	tasks("b", "", false) // its result was not counted
	decide([]uint64{id}, nil)
	tasks("a", "first", false, "first 1", "first 0")
	begin("second")
	decide([]uint64{train("second", "b", 7)}, nil)
	tasks("b", "second", false, "second 7")
	tasks("a", "first", false, "first 1", "first 0")
	begin("first") // used again, so that its record is written again
	var want []string
	for round := range int64(tasksKept) {
		decide([]uint64{train("first", "a", 2+round)}, nil)
		want = append([]string{fmt.Sprint("first ", 2+round)}, want...)
	}
	tasks("a", "first", false, want...)
	for i := range runsKept {
		begin(fmt.Sprint("other ", i))
	}
	tasks("a", "", false)
}
