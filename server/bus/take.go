package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// Take returns up to max results, as many as should fit into maxBytes going by the
// sizes of those before them, but at least one if there is one. It waits for the first,
// up to wait, and then only a moment for others. No result and no error means that
// there is none.
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
	ctx, cancel := within(ctx, b.closing)
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
			room := (maxBytes - len(got[0].Data())) / int(b.typical.Load()+1)
			return b.more(ctx, got, min(max-1, room))
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrConsumerDeleted) {
				b.mend(ctx)
			}
			if !sleep(ctx, min(250*time.Millisecond, time.Until(until))) {
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

// more adds up to max of what else there is.
func (b *Bus) more(ctx context.Context, got []*Delivery, max int) ([]*Delivery, error) {
	if max < 1 {
		return got, nil
	}
	wait := linger
	if n := got[0].behind; n > 0 {
		max, wait = int(min(uint64(max), n)), arrival
	}
	others, err := b.pull(ctx, max, wait)
	if ctx.Err() != nil {
		for _, d := range append(got, others...) {
			_ = d.Later(0)
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		b.log.Debug("taking results", "err", err)
	}
	return append(got, others...), nil
}

// pull asks the server once. What comes after ctx is done is given back.
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
			got = append(got, b.delivery(m))
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
// an error means that the result will come again, and so may no error.
type Delivery struct {
	msg    jetstream.Msg
	times  uint64
	behind uint64 // how many waited when this one was sent
	log    *slog.Logger
}

func (b *Bus) delivery(m jetstream.Msg) *Delivery {
	d := &Delivery{msg: m, times: 1, log: b.log}
	if meta, err := m.Metadata(); err == nil {
		d.times, d.behind = meta.NumDelivered, meta.NumPending
	}
	// Large ones are remembered for a while.
	size, before := int64(len(m.Data())), b.typical.Load()
	b.typical.Store(max(size, before-(before-size)/32))
	return d
}

// ID returns the id that the result was published with.
func (d *Delivery) ID() string { return d.msg.Headers().Get(jetstream.MsgIDHeader) }

// Data returns the result. It is the caller's.
func (d *Delivery) Data() []byte { return d.msg.Data() }

// Deliveries returns how often it was delivered, this time included.
func (d *Delivery) Deliveries() uint64 { return d.times }

// Done says that the ledger has decided about the result.
func (d *Delivery) Done() error { return said(d.msg.Ack()) }

// Later gives the result back, for somebody to take after the delay.
func (d *Delivery) Later(delay time.Duration) error { return said(d.msg.NakWithDelay(delay)) }

// Drop removes a result that nobody will ever be able to use.
func (d *Delivery) Drop(reason string) error {
	reason = reason[:min(len(reason), 200)]
	d.log.Warn("result dropped", "id", d.ID(), "deliveries", d.times, "reason", reason)
	return said(d.msg.TermWithReason(reason))
}

func said(err error) error {
	if err != nil {
		return fmt.Errorf("bus: answering a delivery: %w", err)
	}
	return nil
}
