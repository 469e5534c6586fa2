package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Each of many concurrent callers gets the answer to its own query. The queries cover
// agents with and without clients and tasks, and unknown agents.
func TestCoalescer(t *testing.T) {
	onBoth(t, func(t *testing.T, at string) {
		l := open(t, at)
		const agents = 40
		fleet := 0
		for i := range agents {
			join(t, l, fmt.Sprint("a", i))
			if i%4 != 0 {
				announce(t, l, fmt.Sprint("a", i), named(fmt.Sprintf("a%d-", i), i)...)
				fleet += i
			}
		}
		s := begin(t, l, "run")
		s.ask(0, 0, upTo(fleet)...)
		var counted []Arrival
		for i := 1; i < agents; i += 2 {
			counted = append(counted, one(fmt.Sprint("a", i), 0, 0, named(fmt.Sprintf("a%d-", i), i)[0]))
		}
		wantEqual(t, "counted", len(s.count(counted...)), len(counted))
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(w), 1))
				for range 60 {
					i := rng.IntN(agents + 10)
					id := fmt.Sprint("a", i)
					clients, open := 0, 0
					if i < agents && i%4 != 0 {
						clients, open = i, i-i%2
					}
					c, err := l.Caller(t.Context(), id)
					if (err == nil) != (i < agents) || err != nil && !errors.Is(err, ErrNotFound) || c.Hosts != (clients > 0) {
						t.Errorf("%s: %+v, %v", id, c, err)
					}
					if all, err := l.Tasks(t.Context(), id); err != nil || len(all) != open {
						t.Errorf("%s has %d tasks, not %d: %v", id, len(all), open, err)
					}
					where, err := l.Standings(t.Context(), id, "run", 0, named(id+"-", clients))
					is := map[TurnState]int{}
					for _, s := range where {
						is[s.State]++
					}
					if err != nil || is[Asked] != open || is[Counted] != clients-open {
						t.Errorf("%s with %d clients, %d of them asked: %v, %v", id, clients, open, is, err)
					}
					v, err := l.Version(t.Context(), "run", int64(i%2))
					if (err == nil) != (i%2 == 0) || err != nil && !errors.Is(err, ErrNotFound) {
						t.Errorf("version %d: %v, %v", i%2, v, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// Waiting queries form one batch. A caller that gives up does not affect the other
// callers. All callers of a batch get its error, and no other callers do.
func TestCoalescerBatches(t *testing.T) {
	l := &Ledger{sqlite: true}
	l.open, l.end = context.WithCancel(t.Context())
	var (
		x       coalescer[int, int]
		asked   atomic.Int64
		release = make(chan struct{})
		broken  = errors.New("broken")
	)
	x.start(l, func(_ context.Context, q []int) ([]int, error) {
		asked.Add(1)
		<-release
		answers := make([]int, len(q))
		for i := range q {
			if q[i] == -1 {
				return nil, broken
			}
			if q[i] < 0 {
				panic("a mistake")
			}
			answers[i] = 2 * q[i]
		}
		return answers, nil
	})
	var wg sync.WaitGroup
	busy := func() {
		for range batchesAtOnce {
			n := asked.Load()
			wg.Go(func() {
				if a, err := x.get(t.Context(), 7); a != 14 || err != nil {
					t.Error(a, err)
				}
			})
			for asked.Load() == n {
				time.Sleep(time.Millisecond)
			}
		}
	}
	busy()
	for i := range askedAtOnce - 1 {
		wg.Go(func() {
			if a, err := x.get(t.Context(), i); a != 2*i || err != nil {
				t.Error(i, a, err)
			}
		})
	}
	gone, leave := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, err := x.get(gone, 1); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for len(x.questions) < askedAtOnce {
		time.Sleep(time.Millisecond)
	}
	leave()
	close(release)
	wg.Wait()
	if n := asked.Load(); n > 2*batchesAtOnce {
		t.Errorf("%d questions needed %d queries", askedAtOnce, n)
	}
	if _, err := x.get(t.Context(), -1); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := x.get(t.Context(), -2); err == nil || !strings.Contains(err.Error(), "a mistake") {
		t.Error(err)
	}
	if a, err := x.get(t.Context(), 1); a != 2 || err != nil {
		t.Error(a, err)
	}
	l.end()
	l.answering.Wait()
	if _, err := x.get(t.Context(), 1); err == nil {
		t.Error("a closed ledger answers")
	}
}
