package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"loadstar/rig/product"
)

// watcher polls the ledger and measures the time from a kill to the next progress.
type watcher struct {
	ledger *ledger
	// training is closed when the first run has started.
	training chan struct{}

	mu   sync.Mutex
	last progress
	// awaited lists the kills after which there has been no progress yet.
	awaited []*wait
	times   map[string]*times // by kind of part
}

// wait is a kill, together with the progress in the ledger directly after it.
type wait struct {
	kind     string
	at       time.Time
	from     *progress // nil until the ledger could be read
	receipts bool      // there was a receipt since the kill
}

// times are the times from kills to the next receipt and to the next merged round.
type times struct{ receipt, round []time.Duration }

// lookEvery is the polling interval. It determines the precision of the times.
const lookEvery = 25 * time.Millisecond

func newWatcher(l *ledger) *watcher {
	return &watcher{ledger: l, training: make(chan struct{}), times: map[string]*times{}}
}

// run polls the ledger until ctx is done.
func (w *watcher) run(ctx context.Context) {
	for product.Sleep(ctx, lookEvery) == nil {
		if p, err := w.ledger.progress(ctx); err == nil {
			w.see(p, time.Now())
		}
	}
}

// killed starts to measure the time after a kill of the given kind of part.
func (w *watcher) killed(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaited = append(w.awaited, &wait{kind: kind, at: time.Now()})
}

// see records the progress in the ledger. It drops open measurements while no run is
// training, since there can be no progress.
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

// versions returns the number of merged rounds of all runs.
func (w *watcher) versions() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last.versions
}

// quantile returns the smallest time below or at which at least the given share of the times
// lies.
func quantile(all []time.Duration, share float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	i := int(share*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
