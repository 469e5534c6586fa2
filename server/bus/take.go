package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"loadstar/internal/backoff"
)

const (
	// inFlight is how many bytes should be on their way to one connection. A server
	// hangs up on a client for which more than 64 MiB wait, and slows down others
	// when it comes to three quarters of that.
	inFlight = 48 << 20
	// longPull is how long a single request waits at the server, and so how long
	// Close may have to wait for its end.
	longPull = time.Second
	// linger is how long Take waits for company of the first result when none is
	// there: a batch costs the ledger one transaction, however many are in it.
	// Those that are there may take longer to come.
	linger, arrival = 20 * time.Millisecond, 250 * time.Millisecond
)

// Take returns about max results, as many as should fit into maxBytes going by the
// sizes of those before them, but at least one if there is one. What was published
// together comes together, so that there may be somewhat more than max. It waits for the
// first, up to wait, and then only a moment for others. No result and no error means
// that there is none.
//
// All aggregators share what there is: none gets what another has, unless that one
// does not answer within Config.AckWait. While the carrier is out of reach Take still
// takes the whole of wait, or a second more, so that callers do not spin. When ctx is
// done, what had come goes back.
func (b *Bus) Take(ctx context.Context, max, maxBytes int, wait time.Duration) ([]*Delivery, error) {
	if max < 1 || wait <= 0 {
		return nil, fmt.Errorf("bus: cannot take %d results within %v", max, wait)
	}
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	ctx, cancel := endingWith(ctx, b.closing)
	defer cancel()
	largest := b.config.MaxMessage + envelope
	if maxBytes <= 0 || maxBytes > inFlight/2 {
		maxBytes = inFlight / 2
	}
	until := time.Now().Add(wait)
	// The first comes whatever its size.
	share := int64(largest)
	if max > 1 && maxBytes > largest {
		share = int64(maxBytes)
	}
	queue, done := context.WithDeadline(ctx, until)
	err := b.pending.Acquire(queue, share)
	done()
	if err != nil {
		return nil, context.Cause(ctx)
	}
	defer b.pending.Release(share)

	for {
		got, err := b.pull(ctx, 1, clamp(time.Until(until)))
		if len(got) > 0 {
			return b.more(ctx, got, max, maxBytes)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrConsumerDeleted) {
				b.recreate(ctx)
			}
			if backoff.Sleep(ctx, min(250*time.Millisecond, time.Until(until))) != nil {
				return nil, context.Cause(ctx)
			}
		}
		if time.Until(until) <= 0 {
			if err != nil {
				err = fmt.Errorf("bus: taking results: %w", err)
			}
			return nil, err
		}
	}
}

// clamp gives a request a time that the server can keep.
func clamp(d time.Duration) time.Duration {
	return max(min(d, longPull), time.Millisecond)
}

// more adds what else there is. How large a message is is not known before it is here: a
// pull is for as few as would fit if all were as large as they get, as long as others
// wait.
func (b *Bus) more(ctx context.Context, got []*Delivery, max, maxBytes int) ([]*Delivery, error) {
	wait := linger
	for taken, behind := size(got), got[0].message.behind; len(got) < max; {
		room := min(max-len(got), (maxBytes-taken)/int(b.largest()))
		if behind > 0 {
			room, wait = int(min(uint64(room), behind)), arrival
		}
		if room < 1 {
			break
		}
		others, err := b.pull(ctx, room, wait)
		if ctx.Err() != nil {
			for _, d := range append(got, others...) {
				_ = d.Later(0)
			}
			return nil, context.Cause(ctx)
		}
		if err != nil {
			b.log.Debug("taking results", "err", err)
		}
		got = append(got, others...)
		if len(others) == 0 || others[len(others)-1].message.behind == 0 {
			break
		}
		taken, behind = taken+size(others), others[len(others)-1].message.behind
	}
	return got, nil
}

// largest is what a message is taken to have at most, going by those lately.
func (b *Bus) largest() int64 { return max(b.typical.Load(), groupBytes) }

func size(all []*Delivery) (bytes int) {
	for _, d := range all {
		bytes += len(d.data)
	}
	return bytes
}

// pull asks the server once, for so many messages. What comes after ctx is done is given back.
func (b *Bus) pull(ctx context.Context, max int, wait time.Duration) ([]*Delivery, error) {
	if !b.conn.IsConnected() {
		// The client would keep a subscription for every request that it cannot send.
		return nil, nats.ErrDisconnected
	}
	// Not with ctx, and not with a limit of bytes: the client would drop what is on
	// its way, and it would come again only after AckWait. In a cluster, the message
	// that such a limit is reached overtakes the results that reached it.
	batch, err := b.pulls.Fetch(max, jetstream.FetchMaxWait(wait))
	if err != nil {
		return nil, err
	}
	var got []*Delivery
	for {
		select {
		case m, ok := <-batch.Messages():
			if !ok {
				err := batch.Error()
				if err == nil && !b.conn.IsConnected() {
					err = nats.ErrDisconnected // the request had no answer
				}
				return got, err
			}
			got = append(got, b.deliveries(m)...)
		case <-ctx.Done():
			giveBack := func() {
				for m := range batch.Messages() {
					_ = m.Nak()
				}
			}
			if b.spawn(giveBack) != nil {
				giveBack() // Close waits for this call
			}
			for _, d := range got {
				_ = d.Later(0)
			}
			return nil, context.Cause(ctx)
		}
	}
}

// Delivery is a result that was taken. One of Done, Later and Drop must follow within
// Config.AckWait, or it is delivered again. These return when the answer is on its way:
// an error means that the result will come again, and so may no error. Results that were
// published together also come again together.
type Delivery struct {
	result
	message  *message
	answered atomic.Bool
}

// message is what one or more results came in. It is answered when all of them are.
type message struct {
	jetstream.Msg
	times  uint64
	behind uint64 // how many waited when this one was sent
	log    *slog.Logger

	mu    sync.Mutex
	open  int           // without an answer
	kept  bool          // a result was decided about
	again bool          // a result is to come again
	delay time.Duration // in so much time
}

// deliveries returns the results in a message. One that is not ours is dropped.
func (b *Bus) deliveries(msg jetstream.Msg) []*Delivery {
	// Large ones are remembered for a while.
	size, before := int64(len(msg.Data())), b.typical.Load()
	b.typical.Store(max(size, before-(before-size)/32))
	all, err := unpack(msg.Data())
	if err == nil && len(all) == 0 {
		err = errForeign
	}
	if err != nil {
		b.log.Warn("message dropped", "err", err)
		_ = msg.TermWithReason(err.Error())
		return nil
	}
	m := &message{Msg: msg, times: 1, log: b.log, open: len(all)}
	if meta, err := msg.Metadata(); err == nil {
		m.times, m.behind = meta.NumDelivered, meta.NumPending
	}
	out := make([]*Delivery, len(all))
	for i, r := range all {
		out[i] = &Delivery{result: r, message: m}
	}
	return out
}

// ID returns the id that the result was published with.
func (d *Delivery) ID() string { return d.id }

// Data returns the result. It is the caller's.
func (d *Delivery) Data() []byte { return d.data }

// Deliveries returns how often it was delivered, this time included.
func (d *Delivery) Deliveries() uint64 { return d.message.times }

// Done says that the ledger has decided about the result.
func (d *Delivery) Done() error {
	return d.answer(func(m *message) { m.kept = true })
}

// Later gives the result back, for somebody to take after the delay.
func (d *Delivery) Later(delay time.Duration) error {
	return d.answer(func(m *message) { m.again, m.delay = true, max(m.delay, delay) })
}

// Drop removes a result that nobody will ever be able to use.
func (d *Delivery) Drop(reason string) error {
	reason = reason[:min(len(reason), 200)]
	d.message.log.Warn("result dropped", "id", d.id, "deliveries", d.message.times, "reason", reason)
	return d.answer(func(*message) {})
}

// answer notes what was said of a result, and passes it on with the last of its message.
func (d *Delivery) answer(note func(*message)) error {
	if d.answered.Swap(true) {
		return fmt.Errorf("bus: answering a delivery: %w", jetstream.ErrMsgAlreadyAckd)
	}
	m := d.message
	m.mu.Lock()
	defer m.mu.Unlock()
	note(m)
	if m.open--; m.open > 0 {
		return nil
	}
	var err error
	switch {
	case m.again:
		err = m.NakWithDelay(m.delay)
	case m.kept:
		err = m.Ack()
	default:
		err = m.Term()
	}
	if err != nil {
		return fmt.Errorf("bus: answering a delivery: %w", err)
	}
	return nil
}
