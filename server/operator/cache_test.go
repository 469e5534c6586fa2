package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"loadstar/internal/testkit"
)

// TestCachedAge checks that a cheap value is always new, and that the age of an expensive value
// can reach fifty times the duration of its computation.
func TestCachedAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cached[int]
		n := 0
		get := func(cost time.Duration) int {
			t.Helper()
			x, err := c.get(t.Context(), func(context.Context) (int, error) { n++; time.Sleep(cost); return n, nil })
			testkit.Must(t, err)
			return x
		}
		for want := range 3 {
			if got := get(cheap); got != want+1 {
				t.Errorf("a cheap value is old: %d, want %d", got, want+1)
			}
		}
		const cost = 100 * time.Millisecond
		if got := get(cost); got != 4 {
			t.Errorf("%d, want 4", got)
		}
		time.Sleep(costFactor*cost - time.Nanosecond)
		if got := get(cost); got != 4 || n != 4 {
			t.Errorf("%d after %d computations, want the fourth value until it is too old", got, n)
		}
		time.Sleep(time.Nanosecond)
		if got := get(cost); got != 5 {
			t.Errorf("%d, want a new value", got)
		}
	})
}

// TestCachedConcurrently checks that while one caller computes, others get the previous value,
// and that if there is none, they wait and all use the same computation.
func TestCachedConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cached[int]
		n := 0 // only one computation at a time
		slow := func(context.Context) (int, error) { n++; time.Sleep(time.Second); return n, nil }
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if x, err := c.get(t.Context(), slow); x != 1 || err != nil {
					t.Error(x, err)
				}
			})
		}
		synctest.Wait()
		// A waiting caller may give up.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.get(ctx, slow); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wg.Wait()
		time.Sleep(costFactor * time.Second)
		wg.Go(func() {
			if x, err := c.get(t.Context(), slow); x != 2 || err != nil {
				t.Error(x, err)
			}
		})
		synctest.Wait()
		began := time.Now()
		if x, err := c.get(t.Context(), slow); x != 1 || err != nil || time.Since(began) != 0 {
			t.Errorf("%d, %v after %s, want the previous value at once", x, err, time.Since(began))
		}
		wg.Wait()
		if n != 2 {
			t.Errorf("%d computations, want 2", n)
		}
	})
}

// TestCachedFailure checks that a failure is not cached, and that a caller that gives up does
// not end a computation for which others wait.
func TestCachedFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cached[string]
		if _, err := c.get(t.Context(), func(context.Context) (string, error) { return "", errors.New("broken") }); err == nil {
			t.Error("the failure got lost")
		}
		ctx, cancel := context.WithCancel(t.Context())
		compute := func(ctx context.Context) (string, error) {
			time.Sleep(time.Second)
			return "done", ctx.Err()
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.get(ctx, compute) }) // the waiting caller below checks the result
		synctest.Wait()
		wg.Go(func() {
			if x, err := c.get(t.Context(), compute); x != "done" || err != nil {
				t.Error(x, err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}

// TestHeads checks that the memory for heads of plans is bounded.
func TestHeads(t *testing.T) {
	t.Parallel()
	var h heads
	if x := h.of(plan); x.algorithm != "fedavg" || x.rounds != 7 || x.shared == 0 {
		t.Errorf("%+v", x)
	}
	for i := range maxHeads + 10 {
		h.of(fmt.Sprint("no plan ", i))
	}
	if len(h.byPlan) > maxHeads {
		t.Errorf("%d heads", len(h.byPlan))
	}
	if x := h.of(plan); x.algorithm != "fedavg" {
		t.Errorf("%+v", x)
	}
}
