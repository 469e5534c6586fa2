package blob

import (
	"bytes"
	"container/list"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// patience is the time limit for loading or storing a blob. A load continues even if the
// call that started it is cancelled.
const patience = 2 * time.Minute

type cached struct {
	store Store
	loads singleflight.Group

	mu      sync.Mutex
	limit   int64
	used    int64
	order   *list.List // elements are *entry, most recently used first
	entries map[string]*list.Element
	deletes int64
}

type entry struct {
	hash string
	data []byte
}

var _ Store = (*cached)(nil)

// Cached adds an in-memory LRU cache of at most maxBytes to a store. Concurrent requests for
// the same blob load it only once. A blob that another process deletes may stay in the cache
// for some time.
func Cached(s Store, maxBytes int64) Store {
	return &cached{store: s, limit: maxBytes, order: list.New(), entries: map[string]*list.Element{}}
}

func (c *cached) Put(ctx context.Context, data []byte) (string, error) {
	began := c.deleted()
	hash, err := c.store.Put(ctx, data)
	if err != nil {
		return "", err
	}
	if cost(data) <= c.limit && c.lookup(hash) == nil {
		// A new blob is likely to be requested soon.
		c.keep(hash, bytes.Clone(data), began)
	}
	return hash, nil
}

func (c *cached) Get(ctx context.Context, hash string) ([]byte, error) {
	if err := checkHash(hash); err != nil {
		return nil, err
	}
	if e := c.lookup(hash); e != nil {
		return e.data, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	load := c.loads.DoChan(hash, func() (any, error) {
		if e := c.lookup(hash); e != nil {
			return e.data, nil // another call has loaded it since the first lookup
		}
		// Other callers may wait for this load, so it must not end with the first caller's
		// context.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		began := c.deleted()
		data, err := c.store.Get(ctx, hash)
		if err != nil {
			return nil, err
		}
		c.keep(hash, data, began)
		return data, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-load:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.([]byte), nil
	}
}

func (c *cached) Delete(ctx context.Context, hash string) error {
	err := c.store.Delete(ctx, hash)
	// Later callers must not get the result of a load that started before the deletion.
	c.loads.Forget(hash)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deletes++
	if e := c.entries[hash]; e != nil {
		c.drop(e)
	}
	return err
}

func (c *cached) deleted() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deletes
}

func (c *cached) lookup(hash string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[hash]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry)
}

// keep adds a blob to the cache, unless any blob was deleted after the load began.
func (c *cached) keep(hash string, data []byte, began int64) {
	size := cost(data)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deletes != began || c.entries[hash] != nil || size > c.limit {
		return
	}
	for c.used+size > c.limit {
		c.drop(c.order.Back())
	}
	c.entries[hash] = c.order.PushFront(&entry{hash, data})
	c.used += size
}

func (c *cached) drop(e *list.Element) {
	gone := c.order.Remove(e).(*entry)
	delete(c.entries, gone.hash)
	c.used -= cost(gone.data)
}

// cost returns the memory that a cached blob takes, including its index entry.
func cost(data []byte) int64 { return int64(cap(data)) + 256 }
