package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
)

// full fills a gate, and returns how to leave it again.
func full(t *testing.T, g *gate) []func() {
	t.Helper()
	all := make([]func(), cap(g.room))
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
	g := newGate()
	inside := full(t, g)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := g.enter(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("one too many: %v", err)
	}
	// Who leaves twice makes room for one.
	inside[0]()
	inside[0]()
	leave, err := g.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.enter(short); err == nil {
		t.Fatal("room was given back twice")
	}
	// Who is slow is not at work.
	start := time.Now()
	again := full(t, g)
	if d := time.Since(start); d < workFor/2 || d > 20*workFor {
		t.Errorf("room after %v, not after about %v", d, workFor)
	}
	for _, f := range append(append(again, inside...), leave) {
		f()
	}
	if len(g.room) != 0 {
		t.Errorf("%d are inside when all have left", len(g.room))
	}
}

// Few are at work at a time, also where thousands call, and who rests is not one of
// them.
func TestGated(t *testing.T) {
	g := newGate()
	var working, most, served atomic.Int64
	call := g.WrapUnary(func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) {
		for n := working.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		time.Sleep(100 * time.Microsecond)
		working.Add(-1)
		rest(ctx)
		time.Sleep(5 * time.Millisecond)
		served.Add(1)
		return nil, nil
	})
	var wg sync.WaitGroup
	for range 2000 {
		wg.Go(func() {
			if _, err := call(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := int(most.Load()); n > cap(g.room) || served.Load() != 2000 {
		t.Errorf("%d at a time, %d served", n, served.Load())
	}
	if len(g.room) != 0 {
		t.Errorf("%d are still inside", len(g.room))
	}
}

// Agents stay away for longer where calls wait, and come back when they do not.
func TestStretch(t *testing.T) {
	g := newGate()
	pace := func() time.Duration { return g.stretched(time.Second, time.Minute) }
	g.adjust()
	if d := pace(); d != time.Second {
		t.Errorf("%v where nobody comes", d)
	}
	crowd := func(wait time.Duration) {
		g.came.Add(100)
		g.waited.Add(100 * int64(wait))
		g.adjust()
	}
	crowd(waitAtMost / 2)
	if d := pace(); d != time.Second {
		t.Errorf("%v where calls hardly wait", d)
	}
	crowd(2 * waitAtMost)
	once := pace()
	for range 20 {
		crowd(10 * waitAtMost)
	}
	if once <= time.Second || pace() != farthest/usual*time.Second {
		t.Errorf("%v, then %v where calls wait", once, pace())
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
		t.Errorf("%v when the crowd has gone", d)
	}
}
