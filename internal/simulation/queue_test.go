package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"loadstar/server/bus"
)

const (
	ackWait     = 5 * time.Second // as in package server
	dedupWindow = 2 * time.Minute
)

// queue is a model of the stream that the product keeps in NATS. It allows what NATS allows:
// deliveries in any order, and of any part of what waits.
type queue struct {
	s *schedule
	// dedup means that a message with a known id is discarded. NATS forgets ids in a crash.
	dedup bool

	// The schedule's lock guards these.
	messages []*message
	known    map[string]time.Time
	takes    int
	news     chan struct{} // closed when a message arrives
	woken    map[string]chan string
}

// message is a stored message.
type message struct {
	id    string
	data  []byte
	times uint64
	due   time.Time // not delivered before
	acked bool      // the publisher knows that it is stored
	gone  bool
}

func newQueue(s *schedule, dedup bool) *queue {
	return &queue{s: s, dedup: dedup, known: map[string]time.Time{}, news: make(chan struct{}), woken: map[string]chan string{}}
}

// crash loses what nobody was told is on disk, and all ids.
func (q *queue) crash() (lost int) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.messages = slices.DeleteFunc(q.messages, func(m *message) bool {
		if !m.acked && !m.gone {
			lost++
		}
		return !m.acked
	})
	clear(q.known)
	return lost
}

// waiting returns the number of messages that are not answered.
func (q *queue) waiting() (n int64) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	for _, m := range q.messages {
		if !m.gone {
			n++
		}
	}
	return n
}

// client is the queue as a part sees it. It implements the interfaces of gateway and
// aggregator.
type client struct {
	*queue
	p *part
}

const publishTries = 3

func (c client) Publish(ctx context.Context, id string, data []byte) error {
	for range publishTries {
		if v, err := c.p.wait(ctx, "publish "+id, nil); err != nil {
			return err
		} else if v == refuse {
			continue
		}
		m := c.store(id, data)
		if v, err := c.p.wait(ctx, "published "+id, nil); err != nil {
			return err
		} else if v != refuse {
			c.s.mu.Lock()
			m.acked = true
			c.s.mu.Unlock()
			return nil
		}
	}
	return errors.New("simulated: publishing: no answer")
}

// store adds a message, or returns the stored one with the same id.
func (q *queue) store(id string, data []byte) *message {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	now := time.Now()
	if at, ok := q.known[id]; q.dedup && ok && now.Sub(at) < dedupWindow {
		if i := slices.IndexFunc(q.messages, func(m *message) bool { return m.id == id }); i >= 0 {
			return q.messages[i]
		}
	}
	q.known[id] = now
	m := &message{id: id, data: bus.Pack(id, data)}
	q.messages = append(q.messages, m)
	close(q.news)
	q.news = make(chan struct{})
	return m
}

func (c client) Depth(ctx context.Context) (waiting, taken int64, err error) {
	if err := c.p.ask(ctx, forCall(ctx, "depth"), nil); err != nil {
		return 0, 0, err
	}
	return c.queue.waiting(), 0, nil
}

// Wake notifies the coordinators. A notification can be lost.
func (c client) Wake(run string) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.p.dead || time.Now().Before(c.p.cut) {
		return
	}
	for _, ch := range c.woken {
		select {
		case ch <- run:
		default:
		}
	}
}

// deliverable returns the messages that may be delivered now, and when the next one may be.
func (q *queue) deliverable() (all []*message, next time.Time, news chan struct{}) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	now := time.Now()
	for _, m := range q.messages {
		switch {
		case m.gone:
		case !m.due.After(now):
			all = append(all, m)
		case next.IsZero() || m.due.Before(next):
			next = m.due
		}
	}
	return all, next, q.news
}

func (c client) Take(ctx context.Context, _, _ int, wait time.Duration) ([]*bus.Delivery, error) {
	until := time.Now().Add(wait)
	for {
		all, next, news := c.deliverable()
		if len(all) > 0 {
			v, err := c.p.wait(ctx, "take", nil)
			if err != nil {
				return nil, err
			}
			if v == refuse {
				return nil, errAway
			}
			if got := c.deliver(v == repeat); len(got) > 0 {
				return got, nil
			}
			continue
		}
		if !time.Now().Before(until) {
			return nil, nil
		}
		if next.IsZero() || next.After(until) {
			next = until
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-news:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

// deliver delivers some messages in any order. With again, it also delivers messages that
// were delivered and not answered.
func (c client) deliver(again bool) (got []*bus.Delivery) {
	all, _, _ := c.deliverable()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if again {
		for _, m := range c.messages {
			if !m.gone && !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	c.takes++
	r := c.s.stream("take", c.p.site.name, c.takes)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if len(all) > 0 {
		all = all[:1+r.IntN(len(all))]
	}
	for _, m := range all {
		m.times++
		m.due = time.Now().Add(ackWait)
		got = append(got, bus.Deliver(&delivery{message: m, times: m.times, p: c.p})...)
	}
	return got
}

// delivery is one delivery of a message, as package bus needs it.
type delivery struct {
	jetstream.Msg // panics on what the product does not use
	*message
	times uint64
	p     *part
}

func (d *delivery) Data() []byte         { return d.data }
func (d *delivery) Headers() nats.Header { return nil }

func (d *delivery) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{NumDelivered: d.times}, nil
}

func (d *delivery) Ack() error  { return d.answer("ack", func() { d.gone = true }) }
func (d *delivery) Term() error { return d.answer("term", func() { d.gone = true }) }

func (d *delivery) NakWithDelay(delay time.Duration) error {
	return d.answer("nak", func() { d.due = time.Now().Add(delay) })
}

func (d *delivery) TermWithReason(string) error { return d.Term() }

// answer is not confirmed, as in the product: it can be lost without an error.
func (d *delivery) answer(what string, do func()) error {
	v, err := d.p.wait(context.Background(), fmt.Sprintf("%s %s", what, d.id), nil)
	if err != nil {
		return err
	}
	if v != refuse {
		d.p.s.mu.Lock()
		defer d.p.s.mu.Unlock()
		do()
	}
	return nil
}
