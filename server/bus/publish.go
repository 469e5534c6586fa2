package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"loadstar/internal/backoff"
)

// Publish puts a result into the queue. If it returns nil, enough servers have the result
// on disk that it cannot be lost. After an error the result may or may not be stored, so
// the caller must not report it as accepted. Publish retries until ctx is done, unless a
// retry cannot help: ErrFull, ErrTooLarge, ErrClosed.
//
// A result with the same id as a result of the last two minutes may be discarded as a
// repetition, but this is not guaranteed. The caller must not change data after the call.
func (b *Bus) Publish(ctx context.Context, id string, data []byte) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.calls.Done()
	switch {
	case id == "" || len(id) > maxID || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("bus: %.40q is not a message id: it needs 1 to %d bytes without control characters", id, maxID)
	case len(data) > b.config.MaxMessage:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(data), b.config.MaxMessage)
	case b.server != nil && !b.server.hasRoom():
		return fmt.Errorf("%w: the disk is nearly full", ErrFull)
	}
	ctx, cancel := endingWith(ctx, b.killed)
	defer cancel()
	o := &offer{ctx: ctx, result: result{id, data}, answer: make(chan error, 1)}
	if b.config.MaxGroup == 1 {
		return b.publishGroup([]*offer{o})
	}
	select {
	case b.offers <- o:
	case <-ctx.Done():
		return fmt.Errorf("bus: publishing: %w", context.Cause(ctx))
	}
	select {
	case err := <-o.answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("bus: publishing: %w", context.Cause(ctx))
	}
}

// offer is a result that a Publish call passes to the writers. The writer sends the outcome
// to answer.
type offer struct {
	ctx context.Context
	result
	answer chan error
}

const (
	// writers is the number of messages being stored at a time. Results that arrive while
	// all writers are busy share the next message, so the disk syncs once for all of them.
	// Syncing dominates the cost of publishing.
	writers = 4
	// groupBytes limits the size of a message with several results.
	groupBytes = 2 << 20
)

// write publishes offers in groups until the channel of offers is closed.
func (b *Bus) write() {
	for first := range b.offers {
		for first != nil {
			group, next := b.gather(first)
			err := b.publishGroup(group)
			for _, o := range group {
				o.answer <- err
			}
			first = next
		}
	}
}

// gather returns a group of first and the offers that are waiting. If an offer does not fit
// into the group, gather returns it as next.
func (b *Bus) gather(first *offer) (group []*offer, next *offer) {
	room := min(groupBytes, b.config.MaxMessage) - len(first.data)
	group = append(group, first)
	for len(group) < b.config.MaxGroup {
		select {
		case o, ok := <-b.offers:
			if !ok {
				return group, nil
			}
			if room -= len(o.data) + frame; room < 0 {
				return group, o
			}
			group = append(group, o)
		default:
			return group, nil
		}
	}
	return group, nil
}

// publishGroup stores a group as one message. It retries until every caller has given up.
func (b *Bus) publishGroup(group []*offer) error {
	ctx, cancel := anyOf(group)
	defer cancel()
	id, data := pack(group)
	retry, patience := backoff.Backoff{Base: 50 * time.Millisecond, Cap: time.Second}, 3*time.Second
	for {
		err := b.store(ctx, id, data, patience)
		if err == nil {
			return nil
		}
		if err, final := classify(err); final {
			return err
		}
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			b.recreate(ctx)
		}
		if ended := retry.Wait(ctx); ended != nil {
			return fmt.Errorf("bus: publishing: %w; last: %w", ended, err)
		}
		// An overloaded server gets more time, so that retries do not add to its load.
		patience = min(2*patience, 12*time.Second)
	}
}

// anyOf returns a context that is done when the contexts of all offers are.
func anyOf(group []*offer) (context.Context, context.CancelFunc) {
	if len(group) == 1 {
		return context.WithCancel(group[0].ctx)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	var waiting atomic.Int64
	waiting.Store(int64(len(group)))
	stops := make([]func() bool, len(group))
	for i, o := range group {
		stops[i] = context.AfterFunc(o.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel(context.Cause(o.ctx))
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// store tries once to store a message in the stream. It waits up to patience for the
// answer.
func (b *Bus) store(ctx context.Context, id string, data []byte, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(b.link.Load(), cancel)()
	_, err := b.js.PublishMsg(ctx, b.signed(data),
		jetstream.WithMsgID(id), jetstream.WithExpectStream(streamName), jetstream.WithRetryAttempts(0))
	return err
}

// classify translates an error of NATS into the error for the caller. The second result
// reports whether a retry cannot help.
func classify(err error) (error, bool) {
	if errors.Is(err, nats.ErrConnectionClosed) {
		return ErrClosed, true
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: %w", ErrTooLarge, err), true
	}
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return err, false
	}
	switch api.ErrorCode {
	case errAccountExceeded, errInsufficientResources, errStorageExceeded:
		return fmt.Errorf("%w: %s", ErrFull, api.Description), true
	case errStoreFailed: // several causes share this code and differ only in their text
		if strings.Contains(api.Description, server.ErrMaxBytes.Error()) {
			return fmt.Errorf("%w: %s", ErrFull, api.Description), true
		}
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %s", ErrTooLarge, api.Description), true
	}
	if permanent(api) {
		return fmt.Errorf("bus: publishing: %w", err), true
	}
	return err, false
}

// recreate sets up the stream and the consumer again if they are gone, for instance after
// the cluster was replaced while this process was running. A call that runs while another
// one is active, or soon after it, does nothing.
func (b *Bus) recreate(ctx context.Context) {
	if !b.recreating.TryLock() {
		return
	}
	defer b.recreating.Unlock()
	if time.Since(b.recreated) < 2*time.Second {
		return
	}
	b.recreated = time.Now()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := b.js.Consumer(ctx, streamName, consumerName)
	if !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return
	}
	b.log.Warn("the stream is gone, creating it again", "err", err)
	if _, err := b.ensureStream(ctx); err != nil {
		b.log.Warn("cannot set up the stream", "err", err)
	}
}
