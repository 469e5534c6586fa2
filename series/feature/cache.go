package feature

import (
	"container/list"
	"sync"
	"sync/atomic"

	"loadstar/series"
)

// DefaultCache is the memory in bytes that a frame uses for columns, unless SetCache sets
// another limit. A year of hourly loads needs about 530 kB.
const DefaultCache = 256 << 20

// cache holds the columns of the most recently used meters, up to a limit. Columns are computed
// when they are needed.
type cache struct {
	mu    sync.Mutex
	limit int64
	used  int64
	byKey map[cacheKey]*list.Element
	order list.List // holds *cached values, newest first
}

// cacheKey identifies a meter. Two meters with the same name may have different loads.
type cacheKey struct {
	id    string
	start int64
	load  *float32
	steps int
	// scaling is nil if the training split defines the scaling.
	scaling *Scaling
	since   int
}

type cached struct {
	key     cacheKey
	once    sync.Once
	columns atomic.Pointer[columns] // nil before they are computed and after they are removed
	bytes   int64                   // 0 before the columns are counted
}

// SetCache limits the memory, in bytes, that the frame uses for the values of meters. The
// values of the meter in use stay in memory even if they exceed the limit.
func (f *Frame) SetCache(bytes int64) {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	f.cache.limit = bytes
	f.cache.trim()
}

// Memory returns upper bounds on the bytes that a frame of the dataset needs: the part that
// all meters share, including the framer, and the columns of one meter during their
// computation.
func Memory(d *series.Dataset, t Task) (shared, meter int64) {
	from, to := d.Span()
	steps, perDay := (to-from)/d.Seconds()+int64(t.reach())+1, int64(d.StepsPerDay())
	const weatherBytes, waveBytes, loadBytes = 2 * 8, 16, 3 * 4 // loads are copied to compute ranks
	const framerBytes, lagBytes = 28, 4 + 2                     // a lag is in the framer and in the clock
	lags := int64(len(shiftDays(d.StepsPerDay(), t)))
	shared = steps*(instantBytes+weatherBytes+framerBytes+lagBytes*lags) + perDay*waveBytes + 128<<10
	meter = steps*(pointBytes+summaryBytes+loadBytes) + perDay*slotBytes + maxKnots*16 + 64<<10
	return shared, meter
}

// columns returns the columns of the meter, and marks them as used.
func (r *Rows) columns() *columns {
	key := cacheKey{id: r.meter.ID, start: r.meter.Start, steps: len(r.meter.Load), scaling: r.frozen, since: r.since}
	if len(r.meter.Load) > 0 {
		key.load = &r.meter.Load[0]
	}
	f := r.frame
	for {
		e := f.cache.entry(key)
		var c *columns
		e.once.Do(func() {
			scaling := r.frozen
			if scaling == nil {
				scaling = f.newScaling(r.meter)
			}
			c = f.newColumns(r.meter, scaling, r.since)
			e.columns.Store(c)
			f.cache.count(e, c.bytes())
		})
		if c == nil {
			c = e.columns.Load()
		}
		if c != nil {
			r.used.Store(e)
			return c
		}
		// Another worker needed the memory and has already removed the columns. The next call of
		// entry returns a new entry.
	}
}

// lastColumns returns the columns without a lock if they are still in memory.
func (r *Rows) lastColumns() *columns {
	if e := r.used.Load(); e != nil {
		if c := e.columns.Load(); c != nil {
			return c
		}
	}
	return r.columns()
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

// count adds the memory of new columns, and removes the least recently used ones if the limit
// is exceeded.
func (c *cache) count(e *cached, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[e.key] == nil || c.byKey[e.key].Value.(*cached) != e {
		e.columns.Store(nil) // already removed
		return
	}
	e.bytes = bytes
	c.used += bytes
	c.trim()
}

// trim removes the least recently used columns until the rest is within the limit or only one
// meter is left.
func (c *cache) trim() {
	for c.used > c.limit && c.order.Len() > 1 {
		e := c.order.Remove(c.order.Back()).(*cached)
		delete(c.byKey, e.key)
		e.columns.Store(nil) // rows may still refer to the entry
		c.used -= e.bytes
	}
}
