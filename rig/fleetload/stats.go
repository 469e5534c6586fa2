package fleetload

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// counts collects a fleet's statistics.
type counts struct {
	accepted, closed, unknown, busy, rejected, failures atomic.Int64
	present, bytes, pushed                              atomic.Int64
	checkIn, push, fetch, heard                         histogram

	mu     sync.Mutex
	first  error // first rejection or failure
	run    string
	round  int64 // newest round of the run
	rounds int64
}

// sawRound counts a round if it is new.
func (c *counts) sawRound(run string, round int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if run != c.run || round > c.round {
		c.run, c.round = run, round
		c.rounds++
	}
}

// Rounds returns the number of rounds of which agents have received tasks.
func (f *Fleet) Rounds() int64 {
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	return f.counts.rounds
}

// failed counts a failed call, unless the context was cancelled.
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

// Stats are counts since the fleet was created. Use Since for the counts of an
// interval.
type Stats struct {
	// These fields count pushes by outcome: accepted, too late for the round, lost by the
	// server, refused because the server was overloaded, rejected, and failed.
	Accepted, Closed, Unknown, Busy, Rejected, Failed int64
	// CheckIn, Push and Fetch are call latencies. Heard is the time from the start of a
	// push to the check-in that reports it as counted.
	CheckIn, Push, Fetch, Heard Latencies
	// Bytes is the number of bytes that the connections have transferred in both directions,
	// including TLS. Pushed is the size of the calls in Push, without HTTP.
	Bytes, Pushed int64
}

// Calls returns the number of calls that were answered.
func (s Stats) Calls() int64 { return s.CheckIn.Len() + s.Push.Len() + s.Fetch.Len() + s.Busy }

// Stats returns the statistics so far.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	return Stats{
		Accepted: c.accepted.Load(), Closed: c.closed.Load(), Unknown: c.unknown.Load(), Busy: c.busy.Load(),
		Rejected: c.rejected.Load(), Failed: c.failures.Load(),
		CheckIn: c.checkIn.load(), Push: c.push.load(), Fetch: c.fetch.load(), Heard: c.heard.load(),
		Bytes: c.bytes.Load(), Pushed: c.pushed.Load(),
	}
}

// Since returns the difference between s and before, which was taken earlier.
func (s Stats) Since(before Stats) Stats {
	return Stats{
		s.Accepted - before.Accepted, s.Closed - before.Closed, s.Unknown - before.Unknown, s.Busy - before.Busy,
		s.Rejected - before.Rejected, s.Failed - before.Failed,
		s.CheckIn.since(before.CheckIn), s.Push.since(before.Push), s.Fetch.since(before.Fetch), s.Heard.since(before.Heard), s.Bytes - before.Bytes, s.Pushed - before.Pushed,
	}
}

// Err returns the first rejection or failure, or nil if there was none.
func (f *Fleet) Err() error {
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	return f.counts.first
}

// Latencies is a histogram of durations from 10 us to 20 minutes with a resolution of
// 2 %. The zero value is empty.
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

// Plus returns the sum of two histograms.
func (l Latencies) Plus(o Latencies) Latencies {
	for i := range l {
		l[i] += o[i]
	}
	return l
}

// Len returns the number of durations in the histogram.
func (l Latencies) Len() (n int64) {
	for _, x := range l {
		n += x
	}
	return n
}

// Quantile returns the q-quantile, or 0 if the histogram is empty.
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
