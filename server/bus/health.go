package bus

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Depth returns the number of messages that wait for an aggregator, and the number that
// aggregators have taken and not answered. A message holds one or more results.
func (b *Bus) Depth(ctx context.Context) (waiting, taken int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// Use the stream's message count, which is exact. The consumer's count may lag behind
	// after a restart.
	stream, err := b.js.Stream(ctx, streamName)
	if err != nil {
		return 0, 0, fmt.Errorf("bus: reading the state of the queue: %w", err)
	}
	consumer, err := b.consumer.Info(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("bus: reading the state of the queue: %w", err)
	}
	taken = int64(consumer.NumAckPending)
	return max(0, int64(stream.CachedInfo().State.Msgs)-taken), taken, nil
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
