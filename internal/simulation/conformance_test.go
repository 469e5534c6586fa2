package simulation

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"loadstar/server/aggregator"
	"loadstar/server/bus"
	"loadstar/server/gateway"
)

// results is the queue as the product uses it.
type results interface {
	gateway.Bus
	aggregator.Bus
}

// script calls a queue in a random order and checks that it does what the product relies on,
// and nothing that the model does not do. The model and the product's queue pass the same
// scripts.
type script struct {
	queue   results
	ackWait time.Duration
	random  *rand.Rand

	published map[string]int       // number of publishes, by id
	answered  map[string]int       // number of final answers
	due       map[string]time.Time // not delivered before
	open      map[string]bool      // not answered
}

func newScript(q results, ackWait time.Duration, seed uint64) *script {
	return &script{
		queue: q, ackWait: ackWait, random: rand.New(rand.NewPCG(seed, 3)),
		published: map[string]int{}, answered: map[string]int{}, due: map[string]time.Time{}, open: map[string]bool{},
	}
}

func content(id string) []byte { return []byte("result " + id) }

func (s *script) run(ctx context.Context) error {
	for range 40 {
		if err := s.step(ctx); err != nil {
			return err
		}
	}
	for end := time.Now().Add(time.Minute); len(s.open) > 0; {
		if time.Now().After(end) {
			return fmt.Errorf("never delivered again: %v", s.open)
		}
		if err := s.take(ctx, func(d *bus.Delivery) error { return s.done(d) }); err != nil {
			return err
		}
	}
	return s.depth(ctx)
}

func (s *script) step(ctx context.Context) error {
	switch s.random.IntN(6) {
	case 0, 1:
		id := fmt.Sprint(s.random.IntN(30))
		if err := s.queue.Publish(ctx, id, content(id)); err != nil {
			return err
		}
		s.published[id]++
		if s.published[id] == 1 { // a repeated one may be discarded
			s.open[id] = true
		}
		return nil
	case 2:
		return s.depth(ctx)
	default:
		return s.take(ctx, s.answer)
	}
}

// depth checks the number of messages that are not answered. Answers take a moment.
func (s *script) depth(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		waiting, taken, err := s.queue.Depth(ctx)
		if err != nil {
			return err
		}
		least, most := int64(len(s.open)), int64(0)
		for id, n := range s.published {
			most += int64(n - s.answered[id])
		}
		if n := waiting + taken; n >= least && n <= most {
			return nil
		} else if time.Now().After(end) {
			return fmt.Errorf("the queue has %d messages, want %d to %d", n, least, most)
		}
	}
}

func (s *script) take(ctx context.Context, answer func(*bus.Delivery) error) error {
	begun := time.Now()
	all, err := s.queue.Take(ctx, 1+s.random.IntN(5), 1<<20, 100*time.Millisecond)
	if err != nil {
		return err
	}
	for _, d := range all {
		id := d.ID()
		switch {
		case s.published[id] == 0:
			return fmt.Errorf("%q was delivered and never published", id)
		case s.answered[id] >= s.published[id]:
			return fmt.Errorf("%s was delivered after its answer", id)
		case !bytes.Equal(d.Data(), content(id)):
			return fmt.Errorf("%s was delivered as %q", id, d.Data())
		case d.Deliveries() == 0:
			return fmt.Errorf("%s was delivered 0 times", id)
		case s.published[id] == 1 && time.Now().Before(s.due[id]):
			return fmt.Errorf("%s was delivered %v too early", id, time.Until(s.due[id]))
		}
		s.due[id] = begun.Add(s.ackWait)
		if err := answer(d); err != nil {
			return err
		}
	}
	return nil
}

func (s *script) done(d *bus.Delivery) error {
	s.answered[d.ID()]++
	delete(s.open, d.ID())
	return d.Done()
}

func (s *script) answer(d *bus.Delivery) error {
	switch s.random.IntN(6) {
	case 0: // no answer
		return nil
	case 1:
		delay := time.Duration(s.random.IntN(3)) * 100 * time.Millisecond
		s.due[d.ID()] = time.Now().Add(delay)
		return d.Later(delay)
	case 2:
		s.answered[d.ID()]++
		delete(s.open, d.ID())
		return d.Drop("a test")
	}
	return s.done(d)
}

const scripts = 8

// TestProductsQueue runs the scripts with the product's queue, which is in NATS.
func TestProductsQueue(t *testing.T) {
	const ackWait = time.Second
	for seed := range uint64(scripts) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b, err := bus.Open(t.Context(), bus.Config{Dir: t.TempDir(), AckWait: ackWait, MaxGroup: 1}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close(context.Background())
			if err := newScript(b, ackWait, seed).run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestModelOfQueue runs the scripts with the model of the queue, with and without discarded repeats.
func TestModelOfQueue(t *testing.T) {
	for seed := range uint64(10 * scripts) {
		synctest.Test(t, func(t *testing.T) {
			s := newSchedule(seed)
			p := s.spawn("script", "script", &site{name: hubName})
			var ended atomic.Bool
			var err error
			p.wg.Go(func() {
				err = newScript(client{newQueue(s, seed%2 == 0), p}, ackWait, seed).run(p.ctx)
				ended.Store(true)
				s.ring()
			})
			for !ended.Load() {
				if all := s.candidates(); len(all) > 0 {
					s.let(s.pick(all), proceed)
				} else if !ended.Load() {
					s.idle(time.Minute)
				}
			}
			p.wg.Wait()
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}
