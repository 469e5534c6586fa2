package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// watcher looks at the ledger all the time, and measures for how long nothing moves
// after a kill.
type watcher struct {
	ledger *ledger
	// training is closed when the first run has begun.
	training chan struct{}

	mu   sync.Mutex
	last progress
	// awaited are kills after which nothing has moved yet.
	awaited []*wait
	times   map[string]*times // by kind of part
}

// wait is a kill, and where the ledger stood after it.
type wait struct {
	kind     string
	at       time.Time
	from     *progress // nil until the ledger could be read
	receipts bool      // have come
}

// times are those from a kill to the next receipt, and to the next merged round.
type times struct{ receipt, round []time.Duration }

// lookEvery is how exact the times are.
const lookEvery = 25 * time.Millisecond

func newWatcher(l *ledger) *watcher {
	return &watcher{ledger: l, training: make(chan struct{}), times: map[string]*times{}}
}

// run watches until ctx is done.
func (w *watcher) run(ctx context.Context) {
	for sleep(ctx, lookEvery) {
		if p, err := w.ledger.progress(ctx); err == nil {
			w.see(p, time.Now())
		}
	}
}

// killed begins to measure.
func (w *watcher) killed(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaited = append(w.awaited, &wait{kind: kind, at: time.Now()})
}

// see takes up where the ledger stands. While nothing is trained nothing can move, and
// nothing is measured.
func (w *watcher) see(p progress, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.running+w.last.versions == 0 && p.running > 0 {
		close(w.training)
	}
	w.last = p
	w.awaited = slices.DeleteFunc(w.awaited, func(x *wait) bool {
		if x.from == nil {
			x.from = &p
			return p.running == 0
		}
		t := w.times[x.kind]
		if t == nil {
			t = &times{}
			w.times[x.kind] = t
		}
		if !x.receipts && p.batches > x.from.batches {
			x.receipts = true
			t.receipt = append(t.receipt, now.Sub(x.at))
		}
		if p.versions > x.from.versions {
			t.round = append(t.round, now.Sub(x.at))
			return true
		}
		return p.running == 0
	})
}

// versions returns how many rounds of all runs were merged.
func (w *watcher) versions() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last.versions
}

// quantile returns the smallest time that a share of all is not above.
func quantile(all []time.Duration, share float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	i := int(share*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
