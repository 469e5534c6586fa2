package feature

import (
	"container/list"
	"sync"

	"loadstar/series"
)

// DefaultCache is the memory in bytes that a frame uses for the values of meters, unless
// SetCache sets another limit. A year of hourly loads needs about 530 kB.
const DefaultCache = 256 << 20

// cache has the columns of the meters that were used last, up to a limit. Columns are
// computed when they are needed.
type cache struct {
	mu    sync.Mutex
	limit int64
	used  int64
	byKey map[cacheKey]*list.Element
	order list.List // of *cached, newest first
}

// cacheKey identifies a meter. Two meters with the same name may have different loads.
type cacheKey struct {
	id    string
	start int64
	load  *float32
	steps int
}

type cached struct {
	key     cacheKey
	once    sync.Once
	columns *columns
	bytes   int64 // 0 before the columns are counted
}

// SetCache sets the memory in bytes that the frame uses for the values of meters. The
// values of the meter in use stay in memory even if they exceed the limit.
func (f *Frame) SetCache(bytes int64) {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	f.cache.limit = bytes
	f.cache.trim()
}

// columns returns the columns of a meter.
func (f *Frame) columns(m series.Meter) *columns {
	key := cacheKey{id: m.ID, start: m.Start, steps: len(m.Load)}
	if len(m.Load) > 0 {
		key.load = &m.Load[0]
	}
	c := f.cache.entry(key)
	c.once.Do(func() {
		c.columns = f.newColumns(m, f.newScaling(m))
		f.cache.count(c)
	})
	return c.columns
}

// entry returns the entry of a meter, and creates it if necessary.
func (c *cache) entry(key cacheKey) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[key]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*cached)
	}
	if c.byKey == nil {
		c.byKey = map[cacheKey]*list.Element{}
	}
	e := &cached{key: key}
	c.byKey[key] = c.order.PushFront(e)
	return e
}

// count adds the memory of new columns, and removes the oldest ones if there is not enough.
func (c *cache) count(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[e.key] == nil || c.byKey[e.key].Value.(*cached) != e {
		return // already removed
	}
	e.bytes = e.columns.bytes()
	c.used += e.bytes
	c.trim()
}

// trim removes the oldest columns until the limit is kept or only one meter is left.
func (c *cache) trim() {
	for c.used > c.limit && c.order.Len() > 1 {
		e := c.order.Remove(c.order.Back()).(*cached)
		delete(c.byKey, e.key)
		c.used -= e.bytes
	}
}
