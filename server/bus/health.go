package bus

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Depth returns how many messages wait for an aggregator, and how many are with one.
// Each has a result, or several.
func (b *Bus) Depth(ctx context.Context) (waiting, taken int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// The stream knows better than the consumer, which may lag behind after a restart.
	stream, err := b.js.Stream(ctx, streamName)
	if err != nil {
		return 0, 0, fmt.Errorf("bus: %w", err)
	}
	consumer, err := b.pulls.Info(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("bus: %w", err)
	}
	taken = int64(consumer.NumAckPending)
	return max(0, int64(stream.CachedInfo().State.Msgs)-taken), taken, nil
}

// Healthy returns why results cannot be carried right now, or nil.
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
	if _, err := b.pulls.Info(ctx); err != nil {
		return fmt.Errorf("bus: the stream does not answer: %w", err)
	}
	return nil
}
