package sim

import (
	"container/heap"
	"math"
	"time"

	"loadstar/fed"
	"loadstar/fed/round"
)

// event is the return or the loss of a client at a virtual time.
type event struct {
	At   time.Duration
	For  round.Assignment
	Lost bool
}

// eventQueue is a heap of events in chronological order. Simultaneous events are in the order
// of their clients.
type eventQueue []event

func (q eventQueue) Len() int      { return len(q) }
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q eventQueue) Less(i, j int) bool {
	if q[i].At != q[j].At {
		return q[i].At < q[j].At
	}
	return q[i].For.Client < q[j].For.Client
}
func (q *eventQueue) Push(x any) { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func (q *eventQueue) add(e event) { heap.Push(q, e) }

func (q eventQueue) next() (time.Duration, bool) {
	if len(q) == 0 {
		return 0, false
	}
	return q[0].At, true
}

// take removes and returns the next event if it is due at the given time.
func (q *eventQueue) take(at time.Duration) (event, bool) {
	if next, ok := q.next(); !ok || next > at {
		return event{}, false
	}
	return heap.Pop(q).(event), true
}

// timing determines how long clients take in virtual time. The random numbers depend only
// on the seed, the client and, for dropouts and delays, the round.
type timing struct {
	fed.Simulate
	seed   uint64
	period time.Duration
	// bytes is the total traffic of a client in a round, in both directions.
	bytes int64
}

// roundTrip returns the event that ends the turn of a client that is asked now: its return or
// its loss.
func (p timing) roundTrip(now time.Duration, a round.Assignment, id fed.ClientID, steps int) event {
	e := event{For: a}
	e.Lost = p.Dropout > 0 && fed.Rand(p.seed, "dropout", a.Round, id).Float64() < p.Dropout
	if p.Delay == "fekri2023" {
		rng, periods := fed.Rand(p.seed, "delay", a.Round, id), 1
		for rng.Float64() < p.Delayed {
			periods++
		}
		e.At = now + time.Duration(periods)*p.period
		return e
	}
	seconds := time.Duration(p.StepTime).Seconds() * float64(steps) / p.factor("speed", id, p.SpeedSpread)
	if p.Link > 0 {
		seconds += float64(p.bytes) / (p.Link * p.factor("link", id, p.LinkSpread))
	}
	e.At = now + time.Duration(p.Latency) + time.Duration(seconds*float64(time.Second))
	return e
}

// factor returns a client's random factor for its speed or its bandwidth. The factor has a
// log-normal distribution with median 1.
func (p timing) factor(purpose string, id fed.ClientID, spread float64) float64 {
	if spread == 0 {
		return 1
	}
	return math.Exp(spread * fed.Rand(p.seed, purpose, 0, id).NormFloat64())
}
