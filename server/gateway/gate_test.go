package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
)

// full occupies all slots of a gate and returns the functions that release them.
func full(t *testing.T, g *gate) []func() {
	t.Helper()
	all := make([]func(), cap(g.slots))
	for i := range all {
		leave, err := g.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all[i] = leave
	}
	return all
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		inside := full(t, g)
		short, cancel := context.WithTimeout(t.Context(), maxHold/2)
		defer cancel()
		if _, err := g.enter(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("one too many: %v", err)
		}
		// Calling leave twice releases only one slot.
		inside[0]()
		inside[0]()
		leave, err := g.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.enter(short); err == nil {
			t.Fatal("a slot was released twice")
		}
		// A call that takes longer than maxHold loses its slot. The last call entered half
		// of maxHold later than the other calls.
		start := time.Now()
		again := full(t, g)
		if d := time.Since(start); d != maxHold {
			t.Errorf("a slot after %v, want %v", d, maxHold)
		}
		for _, f := range append(append(again, inside...), leave) {
			f()
		}
		if len(g.slots) != 0 {
			t.Errorf("%d calls are inside after all have left", len(g.slots))
		}
	})
}

// TestGated checks that the gate limits the number of concurrent calls, even if thousands
// arrive, and that a call that has released its slot no longer counts.
func TestGated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		var working, most, served atomic.Int64
		call := g.intercept(func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) {
			for n := working.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			time.Sleep(time.Millisecond)
			working.Add(-1)
			leaveGate(ctx)
			time.Sleep(time.Minute)
			served.Add(1)
			return nil, nil
		})
		start := time.Now()
		var wg sync.WaitGroup
		for range 2000 {
			wg.Go(func() {
				if _, err := call(t.Context(), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := int(most.Load()); n != cap(g.slots) || served.Load() != 2000 {
			t.Errorf("%d at a time, %d served, want %d and 2000", n, served.Load(), cap(g.slots))
		}
		if len(g.slots) != 0 {
			t.Errorf("%d calls are still inside", len(g.slots))
		}
		batches := (2000 + cap(g.slots) - 1) / cap(g.slots)
		if d := time.Since(start); d != time.Duration(batches)*time.Millisecond+time.Minute {
			t.Errorf("took %v: calls outside the gate must overlap", d)
		}
	})
}

// TestStretch checks that agents are asked to check in less often while calls wait, and that
// the interval returns to its original length when no call waits any more.
func TestStretch(t *testing.T) {
	g := newGate()
	pace := func() time.Duration { return g.stretched(time.Second, time.Minute) }
	g.adjust()
	if d := pace(); d != time.Second {
		t.Errorf("%v without calls", d)
	}
	crowd := func(wait time.Duration) {
		g.arrived.Add(100)
		g.waited.Add(100 * int64(wait))
		g.adjust()
	}
	crowd(maxWait / 2)
	if d := pace(); d != time.Second {
		t.Errorf("%v while calls hardly wait", d)
	}
	crowd(2 * maxWait)
	once := pace()
	for range 20 {
		crowd(10 * maxWait)
	}
	if once <= time.Second || pace() != maxStretch/noStretch*time.Second {
		t.Errorf("%v, then %v while calls wait", once, pace())
	}
	if d := g.stretched(time.Second, 2*time.Second); d != 2*time.Second {
		t.Errorf("%v, at most 2 s", d)
	}
	if d := g.stretched(time.Hour, time.Minute); d != time.Hour {
		t.Errorf("an hour has become %v", d)
	}
	for range 40 {
		crowd(0)
	}
	if d := pace(); d != time.Second {
		t.Errorf("%v after the load has gone", d)
	}
}
