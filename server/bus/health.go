package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Depth returns the number of messages that wait for an aggregator, and the number that
// aggregators have taken and not answered. A message holds one or more results.
func (b *Bus) Depth(ctx context.Context) (waiting, taken int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	waiting, taken, deliverable, err := depth(ctx, b.js)
	if err != nil {
		return 0, 0, fmt.Errorf("bus: reading the state of the queue: %w", err)
	}
	if waiting > 0 && deliverable == 0 && taken == 0 {
		b.deliverAgain(ctx)
	} else {
		b.idle.Store(0)
	}
	return waiting, taken, nil
}

// depth reads how many messages wait and are taken from the stream, whose count is exact.
// The consumer's own count of deliverable messages lags behind after a publish and after a
// restart.
func depth(ctx context.Context, js jetstream.JetStream) (waiting, taken, deliverable int64, err error) {
	stream, err := js.Stream(ctx, streamName)
	if err != nil {
		return 0, 0, 0, err
	}
	consumer, err := js.Consumer(ctx, streamName, consumerName)
	if err != nil {
		return 0, 0, 0, err
	}
	taken = int64(consumer.CachedInfo().NumAckPending)
	return max(0, int64(stream.CachedInfo().State.Msgs)-taken), taken, int64(consumer.CachedInfo().NumPending), nil
}

// idleFor is how long messages may be in the stream although the consumer has none to deliver.
const idleFor = 5 * time.Second

// deliverAgain replaces the consumer if it has nothing to deliver for some time although the
// stream has messages. After a loss of power, messages can be there again that were answered
// before: NATS does not sync their deletion, and the consumer passes them over. As long as the
// queue is not empty, agents are not asked to send again what was lost. The new consumer
// delivers all messages, and the ledger knows which of them were counted.
func (b *Bus) deliverAgain(ctx context.Context) {
	now := time.Now().UnixNano()
	if b.idle.CompareAndSwap(0, now) || now-b.idle.Load() < int64(idleFor) {
		return
	}
	b.idle.Store(0)
	b.log.Warn("messages are in the queue that are never delivered, as after a loss of power; delivering them again")
	if err := b.js.DeleteConsumer(ctx, streamName, consumerName); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		b.log.Warn("cannot replace the consumer", "err", err)
		return
	}
	if _, err := b.ensureStream(ctx); err != nil {
		b.log.Warn("cannot set up the stream", "err", err)
	}
}

// Healthy returns nil if the bus can carry results, and otherwise the reason.
func (b *Bus) Healthy() error {
	if b.closing.Err() != nil {
		return ErrClosed
	}
	if !b.conn.IsConnected() {
		if err := b.conn.LastError(); err != nil {
			return fmt.Errorf("bus: not connected to NATS: %w", err)
		}
		return errors.New("bus: not connected to NATS")
	}
	if b.server != nil {
		if err := b.server.healthy(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(b.closing, 2*time.Second)
	defer cancel()
	if _, err := b.consumer.Info(ctx); err != nil {
		return fmt.Errorf("bus: the stream does not answer: %w", err)
	}
	return nil
}
