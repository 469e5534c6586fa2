package sim

import (
	"container/heap"
	"math"
	"time"

	"loadstar/fed"
	"loadstar/fed/round"
)

// event is a client's return in virtual time, or that it will not return.
type event struct {
	At   time.Duration
	For  round.Assignment
	Lost bool
}

// agenda hands out events in the order of time. It implements heap.Interface; what
// happens at one time is in the order of clients.
type agenda []event

func (a agenda) Len() int      { return len(a) }
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a agenda) Less(i, j int) bool {
	if a[i].At != a[j].At {
		return a[i].At < a[j].At
	}
	return a[i].For.Client < a[j].For.Client
}
func (a *agenda) Push(x any) { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	old := *a
	e := old[len(old)-1]
	*a = old[:len(old)-1]
	return e
}

func (a *agenda) add(e event) { heap.Push(a, e) }

// next returns when the next thing happens.
func (a agenda) next() (time.Duration, bool) {
	if len(a) == 0 {
		return 0, false
	}
	return a[0].At, true
}

// take returns the next event of the given time.
func (a *agenda) take(at time.Duration) (event, bool) {
	if next, ok := a.next(); !ok || next > at {
		return event{}, false
	}
	return heap.Pop(a).(event), true
}

// pace says how long clients take in virtual time. Draws depend on the client, and
// on the round where they may change.
type pace struct {
	fed.Simulate
	seed   uint64
	period time.Duration
	// bytes travel both ways together.
	bytes int64
}

// trip returns when a client that is asked now returns, or that it is lost by then.
func (p pace) trip(now time.Duration, a round.Assignment, id fed.ClientID, steps int) event {
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

// factor is a client's own, log-normal with median 1.
func (p pace) factor(purpose string, id fed.ClientID, spread float64) float64 {
	if spread == 0 {
		return 1
	}
	return math.Exp(spread * fed.Rand(p.seed, purpose, 0, id).NormFloat64())
}
