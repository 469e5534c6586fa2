package state

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// model is the expected content of a store.
type model struct {
	kept    map[[2]string]modelKept
	results map[uint64]modelResult
}

type modelKept struct {
	round int64
	seed  uint64
}

type modelResult struct {
	run     string
	round   int64
	clients []string
	seed    uint64
}

// TestModel checks that a store behaves like a simple in-memory model under random
// operations. The store is closed and opened again from time to time.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	const n = 300
	for range 2 {
		dir := t.TempDir()
		s := open(t, dir)
		m := model{map[[2]string]modelKept{}, map[uint64]modelResult{}}
		for step := range 100 {
			run := fmt.Sprint("run ", rng.IntN(3))
			switch rng.IntN(8) {
			case 0:
				s.Close()
				s = open(t, dir)
			case 1, 2, 3:
				var clients []string
				for c := range 5 {
					name := fmt.Sprint("client ", c)
					busy := false
					for _, r := range m.results {
						busy = busy || r.run == run && slices.Contains(r.clients, name)
					}
					if !busy && rng.IntN(2) == 0 {
						clients = append(clients, name)
					}
				}
				if len(clients) == 0 {
					continue
				}
				seed := uint64(100 + 10*step)
				r := put(t, s, run, int64(step), seed, n, clients...)
				m.results[r.ID] = modelResult{run, int64(step), clients, seed}
			default:
				var counted, dropped []uint64
				for id, r := range m.results {
					switch rng.IntN(3) {
					case 0:
						counted = append(counted, id)
						for i, c := range r.clients {
							m.kept[[2]string{r.run, c}] = modelKept{r.round, r.seed + uint64(i)}
						}
						delete(m.results, id)
					case 1:
						dropped = append(dropped, id)
						delete(m.results, id)
					}
				}
				if err := s.Decide(counted, dropped); err != nil {
					t.Fatal(err)
				}
			}
			m.check(t, s, n)
		}
		s.Close()
	}
}

func (m model) check(t *testing.T, s *Store, n int) {
	t.Helper()
	for r := range 3 {
		for c := range 5 {
			run, client := fmt.Sprint("run ", r), fmt.Sprint("client ", c)
			k := m.kept[[2]string{run, client}]
			keeps(t, s, run, client, k.round, k.seed, n)
		}
	}
	all, err := s.Results()
	if err != nil || len(all) != len(m.results) {
		t.Fatalf("%d results, want %d: %v", len(all), len(m.results), err)
	}
	uses := len(m.kept)
	for _, r := range all {
		want := m.results[r.ID]
		uses += 1 + len(want.clients)
		got := make([]byte, r.Size)
		for at := 0; at < len(got); at += 1000 {
			if err := s.Numbers(r.ID, got[at:min(at+1000, len(got))], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		if r.Run != want.run || r.Round != want.round || !slices.Equal(r.Clients, want.clients) ||
			string(r.Head) != fmt.Sprint("head ", want.seed) || !bytes.Equal(got, raw(numbers(want.seed+1000, 2*n+1))) {
			t.Errorf("result %+v, want %+v", r, want)
		}
		if s.Numbers(r.ID, got, 1) == nil || s.Numbers(r.ID, nil, -1) == nil || s.Numbers(r.ID, nil, r.Size+1) == nil || s.Numbers(r.ID, nil, r.Size) != nil {
			t.Error("numbers beyond the end")
		}
	}
	if got := values(t, s); got != uses {
		t.Errorf("%d values for %d uses", got, uses)
	}
	if t.Failed() {
		t.FailNow()
	}
}
