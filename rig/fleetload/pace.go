package fleetload

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"
)

// contacted is an agent that has checked in, and the time of its next check-in.
type contacted struct {
	*agent
	next time.Duration
}

// queue is a heap of waiting agents, ordered by due time on the fleet's clock.
type queue []due

type due struct {
	at time.Duration
	*agent
}

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(due)) }

func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// stopwatch is the fleet's clock. It stops while the fleet rests. Otherwise, all agents would
// be due when the fleet resumes.
type stopwatch struct {
	before time.Duration
	since  time.Time // zero while stopped
}

func (s *stopwatch) now() time.Duration {
	if s.since.IsZero() {
		return s.before
	}
	return s.before + time.Since(s.since)
}

func (s *stopwatch) stop()  { s.before, s.since = s.now(), time.Time{} }
func (s *stopwatch) start() { s.before, s.since = s.now(), time.Now() }

// slot returns how long an agent with a task waits before it sends its result.
func (f *Fleet) slot() time.Duration {
	if f.Pace == 0 {
		return 0
	}
	f.slots.Lock()
	defer f.slots.Unlock()
	now := time.Now()
	if f.slots.next.Before(now) {
		f.slots.next = now
	}
	wait := f.slots.next.Sub(now)
	f.slots.next = f.slots.next.Add(time.Duration(float64(time.Second) / f.Pace))
	return wait
}

// Go starts or resumes the fleet.
func (f *Fleet) Go() { f.tell(f.begin) }

// Rest pauses the fleet: no new calls start. It returns when the current calls have ended.
func (f *Fleet) Rest() { f.tell(f.rest) }

func (f *Fleet) tell(what chan chan struct{}) {
	done := make(chan struct{})
	select {
	case what <- done:
	case <-f.stopped:
		return
	}
	select {
	case <-done:
	case <-f.stopped:
	}
}

// pace starts each agent's check-in when it is due. This goroutine waits for all agents, so
// an idle agent needs only a connection and a queue entry.
func (f *Fleet) pace(ctx context.Context) {
	defer close(f.stopped)
	var (
		clock   stopwatch
		waiting = make(queue, 0, len(f.agents))
		resting = true
		rested  []chan struct{}
		active  int
		timer   = time.NewTimer(time.Hour)
	)
	defer timer.Stop()
	for _, a := range f.agents {
		// The fleet makes its first check-ins at a rate of 1,000 per second. After that,
		// the server determines when agents check in.
		heap.Push(&waiting, due{time.Duration(rand.IntN(len(f.agents))) * time.Millisecond, a})
	}
	for {
		for !resting && len(waiting) > 0 && waiting[0].at <= clock.now() {
			a := heap.Pop(&waiting).(due).agent
			active++
			go func() { f.back <- contacted{a, a.contact(ctx)} }()
		}
		if resting && active == 0 {
			for _, done := range rested {
				close(done)
			}
			rested = nil
		}
		if ctx.Err() != nil && active == 0 {
			return
		}
		if !resting && len(waiting) > 0 {
			timer.Reset(waiting[0].at - clock.now())
		} else {
			timer.Reset(time.Hour)
		}
		over := ctx.Done()
		if resting && ctx.Err() != nil {
			over = nil // only wait for the current calls
		}
		select {
		case c := <-f.back:
			active--
			heap.Push(&waiting, due{clock.now() + c.next, c.agent})
		case <-timer.C:
		case done := <-f.begin:
			if resting && ctx.Err() == nil {
				resting = false
				clock.start()
			}
			close(done)
		case done := <-f.rest:
			if !resting {
				resting = true
				clock.stop()
			}
			rested = append(rested, done)
		case <-over:
			resting = true
		}
	}
}
