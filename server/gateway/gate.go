package gateway

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
)

// gate lets few calls work at a time, and the others wait. Without it, the goroutines of
// thousands of calls would take turns with those that store and count what has come, and
// a server with too much to do would get nothing done.
type gate struct {
	room chan struct{}

	// Since stretch was set: how many came, and how long they waited in all.
	came, waited atomic.Int64
	// stretch is by how much more than usual agents are to stay away, in hundredths.
	stretch atomic.Int64
}

const (
	// workingPerCore is more than can work at a time: some wait for the ledger.
	workingPerCore = 8
	// workFor is how long a call takes up room at most: one that takes longer waits for
	// the ledger.
	workFor = 250 * time.Millisecond
	// waitAtMost is how long calls may wait, in the mean, before there are too many.
	waitAtMost = 10 * time.Millisecond
	usual      = 100
	farthest   = 4 * usual
)

func newGate() *gate {
	g := &gate{room: make(chan struct{}, workingPerCore*runtime.GOMAXPROCS(0))}
	g.stretch.Store(usual)
	return g
}

// enter waits for room. Leave gives it back, and may be called more than once.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	g.came.Add(1)
	select {
	case g.room <- struct{}{}:
	default:
		start := time.Now()
		select {
		case g.room <- struct{}{}:
			g.waited.Add(int64(time.Since(start)))
		case <-ctx.Done():
			g.waited.Add(int64(time.Since(start)))
			return nil, ctx.Err()
		}
	}
	give := sync.OnceFunc(func() { <-g.room })
	timer := time.AfterFunc(workFor, give)
	return func() { timer.Stop(); give() }, nil
}

// adjust sets how far agents are to stay away, by what was seen since it did so last.
// That has to be as long ago as they stay away: it takes as long to have an effect.
func (g *gate) adjust() {
	came, waited := g.came.Swap(0), g.waited.Swap(0)
	s := g.stretch.Load()
	if waited > came*int64(waitAtMost) {
		s = min(s*5/4, farthest)
	} else {
		s = max(s*9/10, usual)
	}
	g.stretch.Store(s)
}

// stretched returns a pace that is as much slower as there is too much to do, up to a
// limit that only the pace itself may exceed.
func (g *gate) stretched(pace, most time.Duration) time.Duration {
	return max(pace, min(pace*time.Duration(g.stretch.Load())/usual, most))
}

// leaveKey finds how to leave the gate, in a call's context.
type leaveKey struct{}

// leaveGate gives a call's room at the gate to others, because it only waits from here on.
func leaveGate(ctx context.Context) {
	if leave, ok := ctx.Value(leaveKey{}).(func()); ok {
		leave()
	}
}

var _ connect.Interceptor = (*gate)(nil)

// WrapUnary lets calls in as there is room for them. Their messages have come by then: who
// sends slowly is not at work.
func (g *gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		leave, err := g.enter(ctx)
		if err != nil {
			return nil, err // nobody is there any more
		}
		defer leave()
		return next(context.WithValue(ctx, leaveKey{}, leave), r)
	}
}

// WrapStreamingClient and WrapStreamingHandler let through what there is not.
func (*gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (*gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
