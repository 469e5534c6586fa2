package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// chained checks the chain of a run.
func chained(t *testing.T, s *Store, run string, version int64, weights []float32, hashes ...string) {
	t.Helper()
	c, found, err := s.Chain(run)
	if err != nil || found != (len(hashes) > 0) || c.Version != version || !slices.Equal(c.Weights, weights) || !slices.Equal(c.Hashes, hashes) {
		t.Errorf("run %s: %v, %t, %v; want version %d, %v, %v", run, c, found, err, version, weights, hashes)
	}
}

func accept(t *testing.T, s *Store, run string, version int64, hash string, weights ...float32) {
	t.Helper()
	if _, err := s.Begin(run); err != nil {
		t.Fatal(err)
	}
	if err := s.Accept(run, version, hash, weights); err != nil {
		t.Fatal(err)
	}
}

// TestChain checks that a chain survives a restart, contains the weights of the newest
// version, and is deleted with its run.
func TestChain(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	chained(t, s, "run", 0, nil)
	if err := s.Accept("run", 0, "a", []float32{1}); err == nil {
		t.Error("a version of a run that has not begun")
	}
	accept(t, s, "run", 0, "a", 1, 2)
	accept(t, s, "run", 3, "b", 3, 4)
	accept(t, s, "run", 2, "c", 5, 6) // an older version adds only its hash
	accept(t, s, "another run", 7, "d", 7)
	s.Close()
	s = open(t, dir)
	chained(t, s, "run", 3, []float32{3, 4}, "a", "b", "c")
	chained(t, s, "another run", 7, []float32{7}, "d")
	accept(t, s, "run", 4, "a", 1, 2) // a rollback
	chained(t, s, "run", 4, []float32{1, 2}, "b", "c", "a")
	values := func() (n int) {
		err := s.view(func(tx *bolt.Tx) error {
			n = tx.Bucket(valuesBucket).Stats().KeyN
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := values(); n != 2 {
		t.Errorf("%d values are stored for two chains", n)
	}
	var last []string
	for i := range 2 * hashesKept {
		accept(t, s, "run", int64(5+i), fmt.Sprint(i), 8)
		last = append(last, fmt.Sprint(i))
	}
	chained(t, s, "run", 4+2*hashesKept, []float32{8}, last[hashesKept:]...)
	for i := range runsKept + 1 {
		if _, err := s.Begin(fmt.Sprint("run ", i)); err != nil {
			t.Fatal(err)
		}
	}
	chained(t, s, "run", 0, nil)
	if n := values(); n != 0 {
		t.Errorf("%d values are stored without a chain", n)
	}
}

// TestDamagedChain checks that a damaged chain is detected and can begin again.
func TestDamagedChain(t *testing.T) {
	s := open(t, t.TempDir())
	accept(t, s, "run", 3, "a", 1, 2)
	err := s.db.Update(func(tx *bolt.Tx) error {
		values := tx.Bucket(valuesBucket)
		key, data := values.Cursor().First()
		data = slices.Clone(data)
		data[1] ^= 8
		return values.Put(key, data)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, found, err := s.Chain("run"); found || !errors.Is(err, ErrDamaged) {
		t.Errorf("%t, %v", found, err)
	}
	accept(t, s, "run", 4, "b", 3, 4)
	chained(t, s, "run", 4, []float32{3, 4}, "a", "b")
}

// TestTrail checks that a trail survives a restart, does not go back, and keeps a fork.
func TestTrail(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.Follow("run", Trail{Version: 1}); err == nil {
		t.Error("a trail of a run that has not begun")
	}
	accept(t, s, "run", 0, "a", 1, 2)
	accept(t, s, "another run", 0, "a", 1, 2)
	accept(t, s, "without a trail", 0, "a", 1, 2)
	follow := func(run string, x Trail) {
		t.Helper()
		if err := s.Follow(run, x); err != nil {
			t.Fatal(err)
		}
	}
	follow("another run", Trail{Version: 1, Hash: []byte("first")})
	x := Trail{Version: 3, Hash: []byte("third")}
	for i := range 2 * hashesKept {
		x.Known = append(x.Known, KnownVersion{Version: int64(i), Weights: fmt.Sprint(i)})
	}
	follow("run", x)
	follow("run", Trail{Version: 2, Hash: []byte("second"), Forked: "two stories"})
	follow("run", Trail{Version: 4, Hash: []byte("fourth"), Known: x.Known})
	s.Close()
	s = open(t, dir)
	c, found, err := s.Chain("run")
	if err != nil || !found || c.Trail.Version != 4 || string(c.Trail.Hash) != "fourth" || c.Trail.Forked != "two stories" || len(c.Trail.Known) != hashesKept {
		t.Errorf("%+v, %t, %v", c, found, err)
	}
	if got := c.Trail.Weights(2*hashesKept - 1); got != fmt.Sprint(2*hashesKept-1) || c.Trail.Weights(0) != "" {
		t.Errorf("the weights of the newest version are %q", got)
	}
	accept(t, s, "run", 5, "b", 3, 4) // accepting weights does not change the trail
	if c, _, err = s.Chain("run"); err != nil || c.Version != 5 || c.Trail.Version != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	for n, want := range map[int][]string{1: {"run"}, 4: {"run", "another run"}} {
		if runs, trails, err := s.Trails(n); err != nil || !slices.Equal(runs, want) || len(trails) != len(want) {
			t.Errorf("trails of %v, want %v: %v", runs, want, err)
		}
	}
}
