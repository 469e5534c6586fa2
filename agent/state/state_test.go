package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// numbers returns n pseudorandom values that depend only on the seed.
func numbers(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = math.Float32frombits(rng.Uint32()) // includes NaNs, whose bits must survive
	}
	return x
}

// put stages n values for each client and stores a result with these clients.
func put(t testing.TB, s *Store, run string, round int64, seed uint64, n int, clients ...string) Result {
	t.Helper()
	if _, err := s.Begin(run); err != nil {
		t.Fatal(err)
	}
	var staged []Staged
	for i, c := range clients {
		g, err := s.Stage(run, c, numbers(seed+uint64(i), n), nil)
		if err != nil {
			t.Fatal(err)
		}
		staged = append(staged, g)
	}
	r, err := s.Put(run, round, staged, fmt.Appendf(nil, "head %d", seed), raw(numbers(seed+1000, 2*n+1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keeps checks that a client's current values are those that put staged with the given
// seed, or that it has none if the seed is 0.
func keeps(t testing.TB, s *Store, run, client string, round int64, seed uint64, n int) {
	t.Helper()
	got := numbers(99, n)
	k, err := s.Load(run, client, got)
	if err != nil {
		t.Fatal(err)
	}
	want := numbers(seed, n)
	if seed == 0 {
		want = numbers(99, n) // Load must leave the buffer unchanged
	}
	if k.First != (seed == 0) || seed != 0 && k.Round != round || !bytes.Equal(raw(got), raw(want)) {
		t.Errorf("%s, %s: %+v, want round %d; its own numbers: %v", run, client, k, round, bytes.Equal(raw(got), raw(want)))
	}
}

// values returns the number of values in the file, including garbage.
func values(t testing.TB, s *Store) int {
	t.Helper()
	n := 0
	err := s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(valuesBucket).ForEach(func(_, _ []byte) error { n++; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFollowsTheCount checks that clients' values change only when a result is counted.
func TestFollowsTheCount(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	keeps(t, s, "run", "a", 0, 0, 5)
	r := put(t, s, "run", 3, 10, 5, "a", "b")
	keeps(t, s, "run", "a", 0, 0, 5)
	if err := s.Decide([]uint64{r.ID}, nil); err != nil {
		t.Fatal(err)
	}
	keeps(t, s, "run", "a", 3, 10, 5)
	keeps(t, s, "run", "b", 3, 11, 5)
	keeps(t, s, "other", "b", 0, 0, 5)
	r = put(t, s, "run", 4, 20, 5, "a")
	q := put(t, s, "run", 4, 30, 5, "b")
	if err := s.Decide([]uint64{q.ID}, []uint64{r.ID, 12345}); err != nil {
		t.Fatal(err)
	}
	keeps(t, s, "run", "a", 3, 10, 5)
	keeps(t, s, "run", "b", 4, 30, 5)
	if err := s.Decide([]uint64{r.ID, q.ID}, nil); err != nil { // the second call has no effect
		t.Fatal(err)
	}
	keeps(t, s, "run", "a", 3, 10, 5)
	if n := values(t, s); n != 2 {
		t.Errorf("%d values are left", n)
	}
	if _, err := s.Load("run", "a", make([]float32, 6)); err == nil {
		t.Error("numbers of another length were loaded")
	}
	if err := s.Numbers(r.ID, nil, 0); !errors.Is(err, ErrDecided) {
		t.Error(err)
	}
}

// TestKeepsNothing checks that the store records that a client was counted even if the client
// has no values.
func TestKeepsNothing(t *testing.T) {
	s := open(t, t.TempDir())
	r := put(t, s, "run", 3, 10, 0, "a")
	if err := s.Decide([]uint64{r.ID}, nil); err != nil {
		t.Fatal(err)
	}
	if k, err := s.Load("run", "a", nil); err != nil || k.First || k.Round != 3 {
		t.Error(k, err)
	}
}

func TestRefuses(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "run", 3, 10, 5, "a", "b")
	g, err := s.Stage("run", "b", numbers(1, 5), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put("run", 4, []Staged{g}, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "not decided") {
		t.Errorf("a second result of a client: %v", err)
	}
	if _, err := s.Put("another run", 4, []Staged{g}, nil, nil, nil); err != nil {
		t.Error(err)
	}
	if _, err := s.Put("run", 4, nil, nil, nil, nil); err == nil {
		t.Error("a result of nobody")
	}
	for _, name := range []string{"", "a\x00b", strings.Repeat("x", 2000)} {
		if _, err := s.Stage("run", name, nil, nil); err == nil {
			t.Errorf("a client named %.9q", name)
		}
		if _, err := s.Begin(name); err == nil {
			t.Errorf("a run named %.9q", name)
		}
		if _, err := s.Put(name, 1, []Staged{g}, nil, nil, nil); err == nil {
			t.Errorf("a result of a run named %.9q", name)
		}
	}
}

// TestGarbage checks that the next Open removes staged values that are in no result, and that
// the next Sweep removes discarded values.
func TestGarbage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	r := put(t, s, "run", 3, 10, 500, "a", "b")
	for range 100 {
		g, err := s.Stage("run", "c", numbers(7, 500), nil)
		if err != nil {
			t.Fatal(err)
		}
		if values(t, s)%2 == 0 {
			s.Discard(g)
		}
	}
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	if n := values(t, s); n >= 103 || n < 40 {
		t.Errorf("%d values after giving up every second", n)
	}
	s.Close()
	s = open(t, dir)
	if n := values(t, s); n != 3 {
		t.Errorf("%d values after opening", n)
	}
	if err := s.Decide([]uint64{r.ID}, nil); err != nil {
		t.Fatal(err)
	}
	keeps(t, s, "run", "b", 3, 11, 500)
}

func TestRuns(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	counted := put(t, s, "run 0", 1, 10, 50, "a", "b")
	if err := s.Decide([]uint64{counted.ID}, nil); err != nil {
		t.Fatal(err)
	}
	undecided := put(t, s, "run 0", 2, 20, 50, "a")
	for i := 1; i < runsKept; i++ {
		r := put(t, s, fmt.Sprint("run ", i), 1, uint64(100*i), 50, "a")
		if err := s.Decide([]uint64{r.ID}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Begin("run 1"); err != nil { // used again, so it is not the next to be deleted
		t.Fatal(err)
	}
	keeps(t, s, "run 0", "b", 1, 11, 50)
	dropped, err := s.Begin("run 100")
	if err != nil || !slices.Equal(dropped, []uint64{undecided.ID}) {
		t.Errorf("%v was dropped: %v", dropped, err)
	}
	keeps(t, s, "run 0", "b", 0, 0, 50)
	keeps(t, s, "run 1", "a", 1, 100, 50)
	s.Close()
	s = open(t, dir)
	if _, err := s.Begin("run 0"); !errors.Is(err, ErrForgotten) {
		t.Errorf("a forgotten run begins: %v", err)
	}
	if _, err := s.Begin("run 101"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin("run 2"); !errors.Is(err, ErrForgotten) {
		t.Errorf("a forgotten run begins: %v", err)
	}
	keeps(t, s, "run 1", "a", 1, 100, 50)
	if n := values(t, s); n != runsKept-2 {
		t.Errorf("%d values", n)
	}
	if all, err := s.Results(); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
	// A client whose result was deleted with its run has no undecided result any more.
	if _, waits := s.undecided[keptKey("run 0", "a")]; waits {
		t.Error("a client waits for a result that was forgotten")
	}
	// Begin writes nothing for the most recent run.
	writes := func() int64 { x := s.db.Stats().TxStats; return x.GetWrite() }
	before := writes()
	for range 10 {
		if _, err := s.Begin("run 101"); err != nil {
			t.Fatal(err)
		}
	}
	if writes() != before {
		t.Error("beginning a run again was written")
	}
}

// TestRunsAreBounded checks that the store remembers the names of a limited number of deleted
// runs.
func TestRunsAreBounded(t *testing.T) {
	s := open(t, t.TempDir())
	s.db.NoSync = true // saves time; this test needs no durability
	for i := range runsKnown + runsKept + 40 {
		if _, err := s.Begin(fmt.Sprint("run ", i)); err != nil {
			t.Fatal(err)
		}
	}
	err := s.db.View(func(tx *bolt.Tx) error {
		live, forgotten, err := listRuns(tx)
		if len(live) != runsKept || len(forgotten) != runsKnown {
			t.Errorf("%d runs and %d forgotten", len(live), len(forgotten))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	began := time.Now()
	if _, err := Open(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s to find out", took)
	}
	s.Close()
	open(t, dir)
}

// TestDamage checks that Open refuses a damaged file or Load refuses the damaged values, so
// that Load never returns wrong values.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	r := put(t, s, "run", 1, 10, 3000, "a", "b", "c")
	if err := s.Decide([]uint64{r.ID}, nil); err != nil {
		t.Fatal(err)
	}
	put(t, s, "run", 2, 20, 3000, "a", "b")
	s.Close()
	path := filepath.Join(dir, "agent.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused, noticed := 0, 0
	look := func() {
		s, err := Open(dir)
		if err != nil {
			refused++
			if errors.Is(err, ErrLocked) {
				t.Error(err)
			}
			return
		}
		defer s.Close()
		for i, c := range []string{"a", "b", "c"} {
			got := make([]float32, 3000)
			k, err := s.Load("run", c, got)
			if err != nil {
				noticed++
				continue
			}
			// Damage to a branch page can hide values, which Load then reports as missing.
			if !k.First && (k.Round != 1 || !bytes.Equal(raw(got), raw(numbers(10+uint64(i), 3000)))) {
				t.Error("other numbers")
			}
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	for range 80 {
		b := bytes.Clone(whole)
		at := rng.IntN(len(b))
		if rng.IntN(2) == 0 { // half of the changes hit page headers, where they do more damage
			at = at&^4095 + rng.IntN(64)
		}
		b[at] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		look()
	}
	if noticed == 0 {
		t.Error("no damage was noticed")
	}
	for _, n := range []int{1, 4095, 4096, 8192, 20000, len(whole) / 4} {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil {
			t.Errorf("a file of %d bytes of %d is opened", n, len(whole))
		}
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("something else", 9999)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	t.Logf("%d refused, %d clients noticed", refused, noticed)
}

// TestDamagedResult checks that a result whose numbers are damaged is not sent.
func TestDamagedResult(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	r := put(t, s, "run", 1, 10, 3000, "a")
	stored := raw(numbers(1010, 6001))
	got := make([]byte, 100)
	if err := s.Numbers(r.ID, got, 0); err != nil || !bytes.Equal(got, stored[:100]) {
		t.Fatal(err)
	}
	s.Close()
	path := filepath.Join(dir, "agent.db")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(file, stored)
	if at < 0 {
		t.Fatal("the numbers are not in the file")
	}
	file[at+len(stored)-1] ^= 4 // beyond the part that is read below
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Numbers(r.ID, got, 0); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "agent.db") {
		t.Errorf("got %v", err)
	}
}

func TestAnotherFormat(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put([]byte("format"), []byte("2")) }); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "written by a newer Loadstar (format 2, this one reads up to 1): upgrade") {
		t.Error(err)
	}
}

// TestManyClients checks that deciding a sum of many clients does not load their values into
// memory.
func TestManyClients(t *testing.T) {
	const clients, floats = 150, 20000
	s := open(t, t.TempDir())
	s.db.NoSync = true
	var names []string
	for i := range clients {
		names = append(names, fmt.Sprintf("client %03d", i))
	}
	for round := range int64(3) {
		r := put(t, s, "run", round, uint64(1000*round+1), floats, names...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := s.Decide([]uint64{r.ID}, nil); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		// The limit allows for Sweep, which may rewrite the neighbours of removed values.
		if took := after.TotalAlloc - before.TotalAlloc; took > clients*floats*4/2 {
			t.Errorf("deciding on %d MB took %d MB", clients*floats*4>>20, took>>20)
		}
	}
	for i, name := range names {
		keeps(t, s, "run", name, 2, uint64(2001+i), floats)
	}
	if n := values(t, s); n != clients {
		t.Errorf("%d values", n)
	}
	info, err := os.Stat(s.db.Path())
	if err != nil {
		t.Fatal(err)
	}
	// The file holds old values, new values, and free pages of bbolt.
	if most := int64(4 * clients * floats * 4); info.Size() > most {
		t.Errorf("the file has %d MB for %d", info.Size()>>20, clients*floats*4>>20)
	}
}

func TestConcurrently(t *testing.T) {
	s := open(t, t.TempDir())
	if _, err := s.Begin("run"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			name := fmt.Sprint("client ", w)
			for round := range int64(10) {
				seed := uint64(100*w) + uint64(round) + 1
				g, err := s.Stage("run", name, numbers(seed, 100), nil)
				if err != nil {
					t.Error(err)
					return
				}
				r, err := s.Put("run", round, []Staged{g}, nil, binary.LittleEndian.AppendUint64(nil, seed), nil)
				if err == nil {
					err = s.Decide([]uint64{r.ID}, nil)
				}
				if err != nil {
					t.Error(err)
					return
				}
				keeps(t, s, "run", name, round, seed, 100)
			}
		})
	}
	wg.Wait()
}

// TestDamagedDay checks that if the count of the day's rounds is damaged, no more rounds are
// allowed that day.
func TestDamagedDay(t *testing.T) {
	s := open(t, t.TempDir())
	now := time.Date(2026, 11, 17, 9, 0, 0, 0, time.UTC)
	if n, err := s.CountRound("a", 5, now); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := s.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(roundsKey, []byte("damaged")) }); err != nil {
		t.Fatal(err)
	}
	if n, err := s.CountRound("b", 5, now); n != 6 || err != nil {
		t.Error(n, err)
	}
	if n, err := s.CountRound("b", 5, now.AddDate(0, 0, 1)); n != 1 || err != nil {
		t.Error(n, err)
	}
}
