package fleetload

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"
)

// contacted is an agent that has made a contact, and when it wants the next.
type contacted struct {
	*agent
	next time.Duration
}

// queue is the agents that wait, by when they are due on the fleet's clock.
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

// stopwatch is the fleet's clock, which stands still while the fleet rests: after it
// agents come back as spread out as they would have.
type stopwatch struct {
	before time.Duration
	since  time.Time // zero while it stands
}

func (s *stopwatch) now() time.Duration {
	if s.since.IsZero() {
		return s.before
	}
	return s.before + time.Since(s.since)
}

func (s *stopwatch) stop()  { s.before, s.since = s.now(), time.Time{} }
func (s *stopwatch) start() { s.before, s.since = s.now(), time.Now() }

// Go lets the fleet work, from where it rested.
func (f *Fleet) Go() { f.tell(f.begin) }

// Rest lets the calls under way end and begins no others. It returns when there are
// none.
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

// pace lets every agent make contact when it is due. All waiting is done here, so that
// an idle agent is a connection and an entry in a queue.
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
		// The first contacts are a thousand a second; then the server paces.
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
			over = nil // what is left is to wait for those under way
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
