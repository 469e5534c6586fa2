package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"loadstar/internal/testkit/pgtest"
)

// TestCoalescer checks that each of many concurrent callers gets the answer to its own query.
// The queries cover agents with and without clients and tasks, and unknown agents.
func TestCoalescer(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
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
		pgtest.Equal(t, "counted", len(s.count(counted...)), len(counted))
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
					c, err := l.Directory.Caller(t.Context(), id)
					if (err == nil) != (i < agents) || err != nil && !errors.Is(err, ErrNotFound) || c.Hosts != (clients > 0) {
						t.Errorf("%s: %+v, %v", id, c, err)
					}
					if all, err := l.Counter.Tasks(t.Context(), id); err != nil || len(all) != open {
						t.Errorf("%s has %d tasks, not %d: %v", id, len(all), open, err)
					}
					where, err := l.Counter.Standings(t.Context(), id, "run", 0, named(id+"-", clients))
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
