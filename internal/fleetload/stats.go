package fleetload

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// counts is what a fleet has seen.
type counts struct {
	accepted, closed, unknown, busy, rejected, failures atomic.Int64
	checkIn, push, fetch, heard                         histogram

	mu    sync.Mutex
	first error // that was rejected, or failed
}

// failed counts a call that came to nothing, unless it was us who ended it.
func (c *counts) failed(ctx context.Context, what string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, errGone) {
		return
	}
	c.failures.Add(1)
	c.note(what, err)
}

func (c *counts) reject(reason string) {
	c.rejected.Add(1)
	c.note("a result was rejected", errors.New(reason))
}

func (c *counts) note(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == nil {
		c.first = errors.Join(errors.New(what), err)
	}
}

// Stats are counts since the fleet was made. Those of a while are the difference of
// two.
type Stats struct {
	// Accepted is of pushes, Closed of those that came late, Unknown of those that
	// the server had lost, Busy of those that it had no room for.
	Accepted, Closed, Unknown, Busy, Rejected, Failed int64
	// CheckIn, Push and Fetch are of the calls, Heard is from the beginning of a push
	// to the check-in that says that it counts.
	CheckIn, Push, Fetch, Heard Latencies
}

// Stats returns what the fleet has seen until now.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	return Stats{
		Accepted: c.accepted.Load(), Closed: c.closed.Load(), Unknown: c.unknown.Load(), Busy: c.busy.Load(),
		Rejected: c.rejected.Load(), Failed: c.failures.Load(),
		CheckIn: c.checkIn.load(), Push: c.push.load(), Fetch: c.fetch.load(), Heard: c.heard.load(),
	}
}

// Since returns what was seen after an earlier time.
func (s Stats) Since(before Stats) Stats {
	return Stats{
		s.Accepted - before.Accepted, s.Closed - before.Closed, s.Unknown - before.Unknown, s.Busy - before.Busy,
		s.Rejected - before.Rejected, s.Failed - before.Failed,
		s.CheckIn.since(before.CheckIn), s.Push.since(before.Push), s.Fetch.since(before.Fetch), s.Heard.since(before.Heard),
	}
}

// Err returns the first thing that went wrong.
func (f *Fleet) Err() error {
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	return f.counts.first
}

// Latencies count times by their size: each count is of those within 2 %, from 10 us
// to 20 minutes. The zero value is empty.
type Latencies [buckets]int64

const (
	buckets  = 940
	shortest = 10 * time.Microsecond
	growth   = 1.02
)

type histogram [buckets]atomic.Int64

func (h *histogram) add(d time.Duration) {
	i := int(math.Log(float64(max(d, shortest))/float64(shortest)) / math.Log(growth))
	h[min(i, buckets-1)].Add(1)
}

func (h *histogram) load() (l Latencies) {
	for i := range h {
		l[i] = h[i].Load()
	}
	return l
}

func (l Latencies) since(before Latencies) Latencies {
	for i := range l {
		l[i] -= before[i]
	}
	return l
}

// Plus returns both together.
func (l Latencies) Plus(o Latencies) Latencies {
	for i := range l {
		l[i] += o[i]
	}
	return l
}

// Len returns how many there are.
func (l Latencies) Len() (n int64) {
	for _, x := range l {
		n += x
	}
	return n
}

// Quantile returns a time that a share q of them do not exceed, and 0 of none.
func (l Latencies) Quantile(q float64) time.Duration {
	n := l.Len()
	if n == 0 {
		return 0
	}
	want := max(int64(math.Ceil(q*float64(n))), 1)
	for i, x := range l {
		if want -= x; want <= 0 {
			return time.Duration(float64(shortest) * math.Pow(growth, float64(i)+0.5))
		}
	}
	return 0 // not reached
}
