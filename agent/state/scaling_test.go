package state

import (
	"bytes"
	"fmt"
	"testing"
)

// putScaled stores a result of one client with a scaling.
func putScaled(t *testing.T, s *Store, run string, round int64, client, scaling string) uint64 {
	t.Helper()
	if _, err := s.Begin(run); err != nil {
		t.Fatal(err)
	}
	g, err := s.Stage(run, client, numbers(uint64(round)+1, 3), []byte(scaling))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Put(run, round, []Staged{g}, nil, []byte("numbers"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.ID
}

// TestScaling checks that the scaling of the first counted result is kept, whatever later
// results contain.
func TestScaling(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	want := func(scaling string, round uint64) {
		t.Helper()
		got, err := s.Scaling("run", "a")
		if err != nil || string(got) != scaling || (got == nil) != (scaling == "") {
			t.Errorf("scaling %q, %v, want %q", got, err, scaling)
		}
		values, read, found, err := s.Read("run", "a")
		if err != nil || found != (round > 0) || string(read) != scaling || found && !bytes.Equal(raw(values), raw(numbers(round, 3))) {
			t.Errorf("scaling %q, found %v, %v; want %q", read, found, err, scaling)
		}
	}
	want("", 0)
	dropped := putScaled(t, s, "run", 0, "a", "dropped")
	want("", 0)
	if err := s.Decide(nil, []uint64{dropped}); err != nil {
		t.Fatal(err)
	}
	want("", 0)
	for round, scaling := range []string{"first", "second", ""} {
		if err := s.Decide([]uint64{putScaled(t, s, "run", int64(round), "a", scaling)}, nil); err != nil {
			t.Fatal(err)
		}
		want("first", uint64(round)+1)
	}
	if n := values(t, s); n != 2 {
		t.Errorf("%d values, want 2", n)
	}
	s.Close()
	s = open(t, dir)
	want("first", 3)
	if n := values(t, s); n != 2 {
		t.Errorf("%d values after opening, want 2", n)
	}
}

// TestPin checks that pinned runs are not deleted, and do not count towards the limit.
func TestPin(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.Pin([]string{"run 0", "run 99", "later"}); err != nil {
		t.Fatal(err)
	}
	begin := func(i int) {
		t.Helper()
		if err := s.Decide([]uint64{putScaled(t, s, fmt.Sprint("run ", i), 0, "a", "scaling")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	has := func(i int) bool {
		t.Helper()
		_, _, found, err := s.Read(fmt.Sprint("run ", i), "a")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for i := range runsKept + 3 {
		begin(i)
	}
	// Run 0 was pinned when it began; of the other runs, the newest remain.
	if !has(0) || has(1) || has(2) || !has(3) {
		t.Errorf("%v %v %v %v", has(0), has(1), has(2), has(3))
	}
	s.Close()
	s = open(t, dir) // before the server's list arrives, the pins in the file count
	begin(50)
	if !has(0) || has(3) || !has(4) {
		t.Errorf("%v %v %v", has(0), has(3), has(4))
	}
	if err := s.Pin([]string{"run 5"}); err != nil {
		t.Fatal(err)
	}
	begin(51)
	if has(0) || !has(5) {
		t.Errorf("%v %v", has(0), has(5))
	}
}
