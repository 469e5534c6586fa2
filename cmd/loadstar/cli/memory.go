package cli

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// CollectOften lets the heap grow to 1.2 times the live heap before the next garbage
// collection. Go's default is 2 times. Training allocates little, so the additional garbage
// collections cost almost nothing.
func CollectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
}

const (
	// headroom is the memory by which a server's heap may grow between garbage collections.
	headroom = 192 << 20
	// leastGrowth and mostGrowth limit this growth, in percent of the live heap. mostGrowth is Go's
	// default.
	leastGrowth, mostGrowth = 40, 100
)

// LimitHeapGrowth collects garbage more often if the live heap is large, until ctx ends. The heap of a
// server with thousands of agents consists mostly of their connections. By default it could grow
// to twice its live size, although a server allocates no faster with more connections.
func LimitHeapGrowth(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := mostGrowth; ; {
		metrics.Read(live)
		if now := growth(live[0].Value.Uint64()); now != last {
			debug.SetGCPercent(now)
			last = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// growth returns by how many percent a live heap may grow before the next garbage collection.
func growth(live uint64) int {
	return int(min(max(100*headroom/max(live, 1), leastGrowth), mostGrowth))
}
