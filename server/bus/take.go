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
	// inFlight is the maximum number of bytes that a server may be sending over one
	// connection. A server closes a connection with more than 64 MiB pending, and slows
	// publishers down from three quarters of that limit.
	inFlight = 48 << 20
	// longPull is the longest time that one pull request waits at the server. Close may
	// have to wait this long for it.
	longPull = time.Second
	// linger is how long Take waits for more results after the first one if the queue was
	// empty. A batch costs the ledger one transaction, whatever its size. arrival is how
	// long Take waits for results that are known to be in the queue.
	linger, arrival = 20 * time.Millisecond, 250 * time.Millisecond
)

// Take returns about max results, and at least one if there is one. It limits their number
// so that they should fit into maxBytes, judging by the sizes of recent messages. Results
// that were published in one message are delivered together, so there may be more than max.
// Take waits up to the duration wait for the first result, and then only a moment for more.
// If there is none, it returns no results and no error.
//
// Aggregators share the queue: a result goes to one of them, and to another only if the
// first does not answer within Config.AckWait. While NATS is unreachable, Take still waits
// for wait, or a second longer, so that a caller's loop does not use all CPU time. When ctx
// is done, Take returns its results to the queue.
func (b *Bus) Take(ctx context.Context, max, maxBytes int, wait time.Duration) ([]*Delivery, error) {
	if max < 1 || wait <= 0 {
		return nil, fmt.Errorf("bus: cannot take %d results within %v: both must be positive", max, wait)
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
	// Reserve room for the largest message, because the first result is taken whatever its
	// size.
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
		got, err := b.pull(ctx, 1, limitWait(time.Until(until)))
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

// limitWait returns how long one pull request waits, if d is the time left.
func limitWait(d time.Duration) time.Duration {
	return max(min(d, longPull), time.Millisecond)
}

// more adds further available results to got, up to max results and maxBytes. The size of a
// message is unknown until it arrives. Each pull therefore asks only for as many messages
// as fit if all of them are large.
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
			b.log.Debug("cannot take more results", "err", err)
		}
		got = append(got, others...)
		if len(others) == 0 || others[len(others)-1].message.behind == 0 {
			break
		}
		taken, behind = taken+size(others), others[len(others)-1].message.behind
	}
	return got, nil
}

// largest returns the assumed maximum size of a message, estimated from recent messages.
func (b *Bus) largest() int64 { return max(b.typicalSize.Load(), groupBytes) }

func size(all []*Delivery) (bytes int) {
	for _, d := range all {
		bytes += len(d.data)
	}
	return bytes
}

// pull sends one request for up to max messages. Messages that arrive after ctx is done
// are returned to the queue.
func (b *Bus) pull(ctx context.Context, max int, wait time.Duration) ([]*Delivery, error) {
	if !b.conn.IsConnected() {
		// Without a connection the client would leak a subscription for every request.
		return nil, nats.ErrDisconnected
	}
	// Do not pass ctx or a byte limit: the client would discard messages in flight, and
	// they would be delivered again only after AckWait. In a cluster, the notice that a
	// byte limit is reached overtakes the messages that reached it.
	batch, err := b.consumer.Fetch(max, jetstream.FetchMaxWait(wait))
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
					// The connection was lost before the request was answered.
					err = nats.ErrDisconnected
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
				giveBack() // the bus is closing, and Close waits for this call
			}
			for _, d := range got {
				_ = d.Later(0)
			}
			return nil, context.Cause(ctx)
		}
	}
}

// Delivery is a result that was taken. The caller must call Done, Later or Drop within
// Config.AckWait, or the result is delivered again. These methods return before the server
// confirms. After an error the result is delivered again. Without an error it may still be
// delivered again. Results that were published in one message are also redelivered
// together.
type Delivery struct {
	result
	message  *message
	answered atomic.Bool
}

// message is the NATS message of one or more results. It is answered when all of its
// results are answered.
type message struct {
	jetstream.Msg
	times  uint64
	behind uint64 // number of messages in the queue behind this one
	log    *slog.Logger

	mu    sync.Mutex
	open  int           // results without an answer
	done  bool          // the ledger decided at least one result
	again bool          // at least one result must be delivered again
	delay time.Duration // delay before the redelivery
}

// deliveries returns the results in a message. It drops a message that cannot be decoded,
// because another program must have sent it.
func (b *Bus) deliveries(msg jetstream.Msg) []*Delivery {
	// The estimate rises at once and decays slowly.
	size, before := int64(len(msg.Data())), b.typicalSize.Load()
	b.typicalSize.Store(max(size, before-(before-size)/32))
	if !b.genuine(msg.Headers(), msg.Data()) {
		b.dropForged()
		_ = msg.TermWithReason(errForged.Error()) // after an error it is delivered again, and dropped again
		return nil
	}
	all, err := unpack(msg.Data())
	if err == nil && len(all) == 0 {
		err = errForeign
	}
	if err != nil {
		b.log.Warn("dropped a message that holds no results", "err", err)
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

// ID returns the id with which the result was published.
func (d *Delivery) ID() string { return d.id }

// Data returns the result. The caller owns it.
func (d *Delivery) Data() []byte { return d.data }

// Deliveries returns how often the result was delivered, including this time.
func (d *Delivery) Deliveries() uint64 { return d.message.times }

// Done removes the result from the queue. Call it after the ledger has decided the result.
func (d *Delivery) Done() error {
	return d.answer(func(m *message) { m.done = true })
}

// Later returns the result to the queue. It is delivered again after the delay.
func (d *Delivery) Later(delay time.Duration) error {
	return d.answer(func(m *message) { m.again, m.delay = true, max(m.delay, delay) })
}

// Drop removes a result that can never be used.
func (d *Delivery) Drop(reason string) error {
	reason = reason[:min(len(reason), 200)]
	d.message.log.Warn("dropped a result", "id", d.id, "deliveries", d.message.times, "reason", reason)
	return d.answer(func(*message) {})
}

// answer records the answer to one result. When all results of a message are answered, it
// sends one answer for the message to NATS.
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
	case m.done:
		err = m.Ack()
	default:
		err = m.Term()
	}
	if err != nil {
		return fmt.Errorf("bus: answering a delivery: %w", err)
	}
	return nil
}
