package gateway

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
)

// gate limits the number of concurrent calls. Further calls wait. Without this limit, the
// goroutines of thousands of calls would compete with those that store and count results,
// and an overloaded server would make no progress.
type gate struct {
	slots chan struct{}

	// arrived is the number of calls since the last adjust, and waited is their total
	// waiting time.
	arrived, waited atomic.Int64
	// stretch is the factor, in hundredths, by which the interval between check-ins is
	// lengthened.
	stretch atomic.Int64
}

const (
	// workingPerCore is the number of slots per CPU. It is more than one, because some
	// calls wait for the ledger.
	workingPerCore = 8
	// maxHold is the longest time for which a call occupies a slot. A call that takes longer is
	// assumed to wait for the ledger.
	maxHold = 250 * time.Millisecond
	// maxWait is the mean waiting time above which the server counts as overloaded.
	maxWait    = 10 * time.Millisecond
	noStretch  = 100
	maxStretch = 4 * noStretch
)

func newGate() *gate {
	g := &gate{slots: make(chan struct{}, workingPerCore*runtime.GOMAXPROCS(0))}
	g.stretch.Store(noStretch)
	return g
}

// enter waits for a slot. leave releases it and may be called more than once.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	g.arrived.Add(1)
	select {
	case g.slots <- struct{}{}:
	default:
		start := time.Now()
		err := take(ctx, g.slots)
		g.waited.Add(int64(time.Since(start)))
		if err != nil {
			return nil, err
		}
	}
	var left atomic.Bool
	give := func() {
		if !left.Swap(true) {
			<-g.slots
		}
	}
	timer := time.AfterFunc(maxHold, give)
	return func() { timer.Stop(); give() }, nil
}

// adjust changes stretch according to the waiting times since it was last called. Call it about
// once per check-in interval, because a change takes that long to take effect.
func (g *gate) adjust() {
	arrived, waited := g.arrived.Swap(0), g.waited.Swap(0)
	s := g.stretch.Load()
	if waited > arrived*int64(maxWait) {
		s = min(s*5/4, maxStretch)
	} else {
		s = max(s*9/10, noStretch)
	}
	g.stretch.Store(s)
}

// stretched returns the interval between check-ins for the current load: pace times stretch,
// but at most most, and never less than pace.
func (g *gate) stretched(pace, most time.Duration) time.Duration {
	return max(pace, min(pace*time.Duration(g.stretch.Load())/noStretch, most))
}

// leaveKey is the context key of a call's leave function.
type leaveKey struct{}

// leaveGate releases the slot of the call with this context. Call it before a call starts
// to wait for another process.
func leaveGate(ctx context.Context) {
	if leave, ok := ctx.Value(leaveKey{}).(func()); ok {
		leave()
	}
}

// intercept runs a call when there is a slot for it. The call's message has already been
// read, so slow senders occupy no slots.
func (g *gate) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		leave, err := g.enter(ctx)
		if err != nil {
			return nil, err // the caller has given up
		}
		defer leave()
		return next(context.WithValue(ctx, leaveKey{}, leave), r)
	}
}
