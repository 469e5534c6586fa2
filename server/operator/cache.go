package operator

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"loadstar/fed/policy"
	"loadstar/fed/recipe"
)

// cached stores a value that may be expensive to compute. It spends at most a fiftieth of the
// time on computing the value, so an expensive value may be older than a cheap one, which is
// always computed anew.
type cached[T any] struct {
	mu   sync.Mutex
	has  bool
	last T
	next time.Time // time from which the value is too old
	busy chan struct{}
}

const (
	cheap      = 5 * time.Millisecond
	costFactor = 50
	computeFor = time.Minute
)

// get returns the value. While another caller computes it, get returns the previous value; if
// there is none yet, get waits.
func (c *cached[T]) get(ctx context.Context, compute func(context.Context) (T, error)) (T, error) {
	for {
		c.mu.Lock()
		if c.has && (c.busy != nil || time.Now().Before(c.next)) {
			defer c.mu.Unlock()
			return c.last, nil
		}
		busy := c.busy
		if busy == nil {
			busy = make(chan struct{})
			c.busy = busy
			c.mu.Unlock()
			return c.compute(ctx, compute, busy)
		}
		c.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
}

func (c *cached[T]) compute(ctx context.Context, compute func(context.Context) (T, error), busy chan struct{}) (T, error) {
	// Other callers may use the value, so the computation must not end with this caller's
	// context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), computeFor)
	defer cancel()
	began := time.Now()
	x, err := compute(ctx)
	cost := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = nil
	close(busy)
	if err != nil {
		return x, err
	}
	c.last, c.has, c.next = x, true, time.Now()
	if cost > cheap {
		c.next = c.next.Add(costFactor * cost)
	}
	return x, nil
}

// head is the part of a plan that is shown in a list of runs.
type head struct {
	algorithm, partition     string
	rounds, shared, personal int64
	warning                  string // reason why agents may decline it
	quorum                   float64
	deadline                 time.Duration
}

// heads caches the heads of plans, because reading a plan takes longer than reading a run.
type heads struct {
	mu     sync.Mutex
	byPlan map[[sha256.Size]byte]head
}

const maxHeads = 1024

// of returns the head of a plan. It is empty if the plan is not valid.
func (h *heads) of(plan string) (x head) {
	key := sha256.Sum256([]byte(plan))
	h.mu.Lock()
	defer h.mu.Unlock()
	if x, ok := h.byPlan[key]; ok {
		return x
	}
	if p, err := recipe.Read([]byte(plan)); err == nil {
		x.algorithm, x.rounds, x.partition = p.Algorithm, int64(p.Rounds), p.Partition
		x.warning = policy.Warn(p, 0)
		x.quorum, x.deadline = p.Schedule.Quorum, time.Duration(p.Schedule.Deadline)
		if q, err := recipe.Frame(p, nil); err == nil {
			x.shared, x.personal = int64(q.Partition.SharedLen()), int64(q.Partition.PersonalLen())
		}
	}
	if len(h.byPlan) >= maxHeads || h.byPlan == nil {
		h.byPlan = map[[sha256.Size]byte]head{}
	}
	h.byPlan[key] = x
	return x
}
