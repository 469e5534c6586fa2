package sqlstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestCoalescerBatches checks that waiting queries form one batch, that a caller that gives up
// does not affect the other callers, and that a batch's error reaches all of its callers and no
// others.
func TestCoalescerBatches(t *testing.T) {
	s := &Store{SQLite: true}
	s.open, s.end = context.WithCancel(t.Context())
	var (
		x       Coalescer[int, int]
		asked   atomic.Int64
		release = make(chan struct{})
		broken  = errors.New("broken")
	)
	x.Start(s, func(_ context.Context, q []int) ([]int, error) {
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
				if a, err := x.Get(t.Context(), 7); a != 14 || err != nil {
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
			if a, err := x.Get(t.Context(), i); a != 2*i || err != nil {
				t.Error(i, a, err)
			}
		})
	}
	gone, leave := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, err := x.Get(gone, 1); !errors.Is(err, context.Canceled) {
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
	if _, err := x.Get(t.Context(), -1); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := x.Get(t.Context(), -2); err == nil || !strings.Contains(err.Error(), "a mistake") {
		t.Error(err)
	}
	if a, err := x.Get(t.Context(), 1); a != 2 || err != nil {
		t.Error(a, err)
	}
	s.end()
	s.answering.Wait()
	if _, err := x.Get(t.Context(), 1); err == nil {
		t.Error("a closed ledger answers")
	}
}
