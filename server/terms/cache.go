package terms

import (
	"context"
	"fmt"
	"sync"
)

// Cache holds the terms of recently used runs. It is safe for concurrent use.
type Cache struct {
	load func(ctx context.Context, run string) (*Terms, error)

	mu    sync.Mutex
	byRun map[string]*Terms
}

// maxRuns is the maximum number of runs in the cache. A server has fewer active runs.
const maxRuns = 64

// NewCache returns a Cache that calls load for runs that it does not hold.
func NewCache(load func(ctx context.Context, run string) (*Terms, error)) *Cache {
	return &Cache{load: load, byRun: map[string]*Terms{}}
}

// Of returns the terms of a run, from the cache if possible.
func (b *Cache) Of(ctx context.Context, run string) (*Terms, error) {
	b.mu.Lock()
	t := b.byRun[run]
	b.mu.Unlock()
	if t != nil {
		return t, nil
	}
	t, err := b.load(ctx, run)
	if err != nil {
		return nil, fmt.Errorf("reading the terms of run %s: %w", run, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.byRun) >= maxRuns {
		clear(b.byRun) // the cache is full, and terms are cheap to load again
	}
	b.byRun[run] = t
	return t, nil
}
