package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newStore(t testing.TB, path string, clients int, initial []float32, memory int64) *Kept {
	t.Helper()
	s, err := OpenKept(path, clients, len(initial), initial, memory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) // may already be closed
	return s
}

func fill(n int, v float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = v + float32(i)
	}
	return x
}

// TestStoreModel compares the store with a map after random operations, some of which simulate
// a crash: they reopen the file and restore the last saved snapshot.
func TestStoreModel(t *testing.T) {
	folder, files := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		files++
		path := filepath.Join(folder, fmt.Sprint(files))
		clients := rapid.IntRange(1, 9).Draw(t, "clients")
		floats := rapid.SampledFrom([]int{0, 1, 7, 1023, 1024}).Draw(t, "floats")
		memory := int64(rapid.IntRange(0, 10).Draw(t, "values in memory") * 4 * floats)
		initial := fill(floats, 0.5)
		open := func() *Kept {
			s, err := OpenKept(path, clients, floats, initial, memory)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open()
		defer func() {
			s.Close() // the test is over
			os.Remove(path)
		}()
		now, saved := map[int]float32{}, map[int]float32{}
		var snapshot []byte
		// pending is the snapshot of a commit that is not on disk yet.
		var pending []byte
		var then map[int]float32
		clone := func(m map[int]float32) map[int]float32 {
			c := map[int]float32{}
			for i, v := range m {
				c[i] = v
			}
			return c
		}
		load := func(client int) {
			dst := fill(floats, -1)
			first, err := s.Load(client, dst)
			if err != nil {
				t.Fatal(err)
			}
			v, stored := now[client]
			want := initial
			if stored {
				want = fill(floats, v)
			}
			if first == stored || !slices.Equal(dst, want) {
				t.Fatalf("client %d: first %v, %v; want %v, %v", client, first, dst, !stored, want)
			}
		}
		client := rapid.IntRange(0, clients-1)
		t.Repeat(map[string]func(*rapid.T){
			"load": func(t *rapid.T) { load(client.Draw(t, "client")) },
			"store": func(t *rapid.T) {
				i, v := client.Draw(t, "client"), float32(rapid.IntRange(0, 1e6).Draw(t, "value"))
				src := fill(floats, v)
				if err := s.Put(i, src); err != nil {
					t.Fatal(err)
				}
				clear(src) // the store must have copied the values
				now[i] = v
			},
			"commit": func(t *rapid.T) {
				if pending != nil {
					t.Skip("the last commit is still pending")
				}
				var err error
				if pending, err = s.Commit(); err != nil {
					t.Fatal(err)
				}
				then = clone(now)
			},
			"finish commit": func(t *rapid.T) {
				if pending == nil {
					t.Skip("no pending commit")
				}
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				s.Release()
				snapshot, saved, pending = pending, then, nil
			},
			"crash": func(t *rapid.T) {
				if pending != nil && rapid.Bool().Draw(t, "after the snapshot was saved") {
					snapshot, saved = pending, then
				}
				pending = nil
				s.Close() // the crash
				s = open()
				now = clone(saved)
				if snapshot == nil {
					return
				}
				if err := s.Restore(snapshot); err != nil {
					t.Fatal(err)
				}
			},
			"restore": func(t *rapid.T) {
				if snapshot == nil || pending != nil {
					t.Skip("no commit, or a pending one")
				}
				if err := s.Restore(snapshot); err != nil {
					t.Fatal(err)
				}
				now = clone(saved)
			},
			"": func(t *rapid.T) {
				for i := range clients {
					load(i)
				}
				if len(s.ring) > s.room {
					t.Fatalf("%d values in memory, %d allowed", len(s.ring), s.room)
				}
			},
		})
	})
}

func TestStoreBits(t *testing.T) {
	initial := []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e-45, float32(math.Copysign(0, -1))}
	path := filepath.Join(t.TempDir(), "kept.bin")
	s := newStore(t, path, 3, initial, 0)
	if err := s.Put(1, initial); err != nil {
		t.Fatal(err)
	}
	dst := make([]float32, 4)
	if first, err := s.Load(1, dst); first || err != nil || !bytes.Equal(raw(dst), raw(initial)) {
		t.Errorf("stored %v, loaded %v, %v", initial, dst, err)
	}
	if err := s.Put(1, dst[:3]); err == nil {
		t.Error("Put accepted 3 floats, want 4")
	}
}

func TestStoreRefuses(t *testing.T) {
	const clients, floats = 5, 2000
	initial := fill(floats, 0)
	// prepare writes a file with values of clients 1 and 2, closes it, and returns its path
	// and its snapshot.
	prepare := func(t *testing.T) (path string, snapshot []byte) {
		path = filepath.Join(t.TempDir(), "kept.bin")
		s := newStore(t, path, clients, initial, 1<<20)
		for i := 1; i <= 2; i++ {
			if err := s.Put(i, fill(floats, float32(i))); err != nil {
				t.Fatal(err)
			}
		}
		snapshot, err := s.Commit()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return path, snapshot
	}
	flip := func(t *testing.T, path string, at int64) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 4
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(t *testing.T, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	open := func(path string, clients, floats int, initial []float32) error {
		s, err := OpenKept(path, clients, floats, initial, 0)
		if err == nil {
			s.Close() // the caller reports the error
		}
		return err
	}
	t.Run("open", func(t *testing.T) {
		path, _ := prepare(t)
		refused(t, open(path, clients+1, floats, initial), "2000 floats for each of 5 clients, not 2000 for 6")
		refused(t, open(path, clients, 1, initial[:1]), "2000 floats for each of 5 clients, not 1 for 5")
		refused(t, open(path, clients, floats, initial[1:]), "initial values, not 1999")
		refused(t, open(path, clients, floats, fill(floats, 1)), "different initial weights")
		s := newStore(t, path, clients, initial, 0)
		refused(t, open(path, clients, floats, initial), "another run is using it")
		s.Close() // release the lock
		if err := os.Truncate(path, s.size()-1); err != nil {
			t.Fatal(err)
		}
		refused(t, open(path, clients, floats, initial), fmt.Sprintf("%d bytes instead of %d", s.size()-1, s.size()))
		if err := os.Truncate(path, 20); err != nil {
			t.Fatal(err)
		}
		refused(t, open(path, clients, floats, initial), "damaged")
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		refused(t, open(path, clients, floats, initial), "not a file of personal weights")
		path, _ = prepare(t)
		flip(t, path, 30)
		refused(t, open(path, clients, floats, initial), "header is damaged")
	})
	t.Run("restore", func(t *testing.T) {
		path, snapshot := prepare(t)
		s := newStore(t, path, clients, initial, 0)
		for _, at := range []int64{s.place(2, 0), s.place(1, 0) + 4*floats - 1, s.place(1, 0) + 4*floats} {
			flip(t, path, at)
			refused(t, s.Restore(snapshot), "do not match their checksum")
			flip(t, path, at)
		}
		for i := range snapshot {
			snapshot[i] ^= 1
			refused(t, s.Restore(snapshot), "checkpoint")
			snapshot[i] ^= 1
			refused(t, s.Restore(snapshot[:i]), "checkpoint")
		}
		_, other := prepare(t)
		refused(t, s.Restore(other), "does not belong to this checkpoint")
		if first, err := s.Load(1, make([]float32, floats)); !first || err != nil {
			t.Errorf("after a refused snapshot: first %v, %v", first, err)
		}
		if err := s.Restore(snapshot); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, s.place(2, 0)+100); err != nil {
			t.Fatal(err)
		}
		_, err := s.Load(2, make([]float32, floats))
		refused(t, err, "cut off before the weights of client 2")
	})
	t.Run("three commits later", func(t *testing.T) {
		path, snapshot := prepare(t)
		s := newStore(t, path, clients, initial, 0)
		if err := s.Restore(snapshot); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := s.Put(1, fill(floats, float32(10+i))); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(); err != nil {
				t.Fatal(err)
			}
			s.Release()
		}
		refused(t, s.Restore(snapshot), "later commits have overwritten them")
	})
	t.Run("closed", func(t *testing.T) {
		s := newStore(t, filepath.Join(t.TempDir(), "kept.bin"), 1, initial, 1<<20)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := s.Load(0, make([]float32, floats))
		_, err2 := s.Commit()
		for _, err := range []error{err, err2, s.Put(0, initial)} {
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("after close: %v", err)
			}
		}
	})
}

// TestStoreConcurrent checks that no update is lost when several workers increment the
// clients' values during commits. The store's memory has room for only a few clients.
func TestStoreConcurrent(t *testing.T) {
	const clients, floats, workers, rounds = 40, 1500, 8, 12
	path := filepath.Join(t.TempDir(), "kept.bin")
	for _, room := range []int64{0, 3, workers, clients / 2, clients} {
		os.Remove(path)
		s := newStore(t, path, clients, fill(floats, 0), room*4*floats)
		for round := range rounds {
			next := make(chan int)
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					x := make([]float32, floats)
					for i := range next {
						first, err := s.Load(i, x)
						if err != nil || first != (round == 0) || !slices.Equal(x, fill(floats, float32(round))) {
							t.Errorf("round %d, client %d: first %v, %g..., %v", round, i, first, x[0], err)
						}
						if err := s.Put(i, fill(floats, float32(round+1))); err != nil {
							t.Error(err)
						}
					}
				})
			}
			var snapshot []byte
			for n, i := range rand.New(rand.NewPCG(1, uint64(round))).Perm(clients) {
				if n == clients/2 {
					var err error
					if snapshot, err = s.Commit(); err != nil {
						t.Fatal(err)
					}
				}
				next <- i
			}
			close(next)
			wg.Wait()
			if round == rounds-1 {
				if err := s.Restore(snapshot); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(s.ring) > int(room) {
			t.Errorf("%d values in memory, %d allowed", len(s.ring), room)
		}
		s.Close() // the next store has a different memory limit
	}
}

// TestStoreKilled repeatedly kills a process that stores values, commits and saves
// snapshots. After each kill, it checks that the saved state is complete.
func TestStoreKilled(t *testing.T) {
	const clients, floats, room = 30, 5000, 10
	folder := os.Getenv("LOADSTAR_TEST_KEPT")
	child := folder != ""
	if !child {
		folder = t.TempDir()
	}
	path, saved := filepath.Join(folder, "kept.bin"), filepath.Join(folder, "snapshot")
	takesPart := func(round, client int) bool { return rand.New(rand.NewPCG(uint64(round), uint64(client))).IntN(3) == 0 }
	// resume opens the store, restores and checks the saved state, and returns the number
	// of rounds done.
	resume := func() (*Kept, int) {
		s := newStore(t, path, clients, fill(floats, 0.5), room*4*floats)
		snapshot, err := os.ReadFile(saved)
		if errors.Is(err, os.ErrNotExist) {
			return s, 0
		}
		if err != nil {
			t.Fatal(err)
		}
		rounds := int(binary.LittleEndian.Uint64(snapshot))
		if err := s.Restore(snapshot[8:]); err != nil {
			t.Fatal(err)
		}
		x := make([]float32, floats)
		for i := range clients {
			want, never := float32(0.5), true
			for round := range rounds {
				if takesPart(round, i) {
					want, never = float32(round*clients+i), false
				}
			}
			first, err := s.Load(i, x)
			if err != nil || first != never || !slices.Equal(x, fill(floats, want)) {
				t.Fatalf("after %d rounds, client %d: first %v, %g..., %v; want %v, %g", rounds, i, first, x[0], err, never, want)
			}
		}
		return s, rounds
	}
	if child {
		s, round := resume()
		for ; ; round++ {
			for i := range clients {
				if takesPart(round, i) {
					if err := s.Put(i, fill(floats, float32(round*clients+i))); err != nil {
						t.Fatal(err)
					}
				}
			}
			snapshot, err := s.Commit()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			snapshot = append(binary.LittleEndian.AppendUint64(nil, uint64(round+1)), snapshot...)
			if err := errors.Join(os.WriteFile(saved+".new", snapshot, 0o644), os.Rename(saved+".new", saved)); err != nil {
				t.Fatal(err)
			}
			s.Release()
		}
	}
	rng := rand.New(rand.NewPCG(2, 2))
	for range 6 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStoreKilled$")
		cmd.Env = append(os.Environ(), "LOADSTAR_TEST_KEPT="+folder)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Wait until the process has saved a snapshot, which takes longer on a loaded
		// machine, and then kill it at a random moment.
		for before, end := savedAt(saved), time.Now().Add(time.Minute); savedAt(saved).Equal(before) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		cmd.Process.Kill() // Wait shows whether this failed
		cmd.Wait()         // the error is that the process was killed
		if out.Len() > 0 {
			t.Fatalf("the process exited by itself: %s", &out)
		}
	}
	s, rounds := resume()
	t.Logf("%d rounds", rounds)
	if rounds == 0 {
		t.Error("no round was saved")
	}
	s.Close() // the test is over
}

// savedAt returns the modification time of a file, or the zero time if there is no file.
func savedAt(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// BenchmarkStore loads and stores values of random clients, for a fleet that fits into
// memory and for one that does not.
func BenchmarkStore(b *testing.B) {
	const floats = 36421
	for _, c := range []struct {
		clients int
		memory  int64
	}{{42, 256 << 20}, {10000, 256 << 20}} {
		b.Run(fmt.Sprint(c.clients), func(b *testing.B) {
			s := newStore(b, filepath.Join(b.TempDir(), "kept.bin"), c.clients, fill(floats, 0), c.memory)
			x := make([]float32, floats)
			for i := range c.clients {
				if err := s.Put(i, x); err != nil {
					b.Fatal(err)
				}
			}
			rng := rand.New(rand.NewPCG(1, 1))
			b.SetBytes(2 * 4 * floats)
			for b.Loop() {
				i := rng.IntN(c.clients)
				if _, err := s.Load(i, x); err != nil {
					b.Fatal(err)
				}
				x[0]++
				if err := s.Put(i, x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
