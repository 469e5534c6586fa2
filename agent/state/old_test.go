package state

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestOldFile checks that a file written by the code of commit 65e9244 can be read. In that
// file, clients a and b are counted in round 0 of one run, and b and c have an undecided
// result in round 3. In another run, a has an undecided result in round 5.
func TestOldFile(t *testing.T) {
	dir := t.TempDir()
	unpack(t, "testdata/agent.db.65e9244.gz", filepath.Join(dir, "agent.db"))
	const n = 9
	s := open(t, dir)
	keeps(t, s, "run", "a", 0, 1, n)
	keeps(t, s, "run", "b", 0, 2, n)
	keeps(t, s, "run", "c", 0, 0, n)
	keeps(t, s, "another run", "a", 0, 0, n)
	all, err := s.Results()
	if err != nil || len(all) != 2 {
		t.Fatalf("%d results, want 2: %v", len(all), err)
	}
	for i, want := range []struct {
		round int64
		head  string
		seed  uint64
	}{{3, "head 11", 11}, {5, "head 21", 21}} {
		r := all[i]
		got := make([]byte, r.Size)
		if err := s.Numbers(r.ID, got, 0); err != nil {
			t.Fatal(err)
		}
		if r.Round != want.round || string(r.Head) != want.head || !bytes.Equal(got, raw(numbers(want.seed+1000, 2*n+1))) {
			t.Errorf("result %d: round %d, head %q; want %+v", i, r.Round, r.Head, want)
		}
	}
	if err := s.Decide([]uint64{all[0].ID}, []uint64{all[1].ID}); err != nil {
		t.Fatal(err)
	}
	s.Close()

	s = open(t, dir)
	keeps(t, s, "run", "a", 0, 1, n)
	keeps(t, s, "run", "b", 3, 11, n)
	keeps(t, s, "run", "c", 3, 12, n)
	keeps(t, s, "another run", "a", 0, 0, n)
}

// unpack writes the content of a gzip file to another file.
func unpack(t *testing.T, from, to string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
