package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Publish hands a result over. When it returns nil, the result is on the disks of as
// many servers as it takes not to lose it. Otherwise it may be there or not: the
// caller must not tell anybody that it is. It tries until ctx is done, except when
// trying is of no use: ErrFull, ErrTooLarge, ErrClosed.
//
// The id is a filter: a result whose id came within the last minutes is not stored
// again. That is no guarantee. The data is not kept.
func (b *Bus) Publish(ctx context.Context, id string, data []byte) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.calls.Done()
	switch {
	case id == "" || len(id) > maxID || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("bus: %.40q is no message id", id)
	case len(data) > b.config.MaxMessage:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(data), b.config.MaxMessage)
	case b.server != nil && !b.server.roomy():
		return fmt.Errorf("%w: the disk is nearly full", ErrFull)
	}
	ctx, cancel := within(ctx, b.killed)
	defer cancel()
	pause, patience := 50*time.Millisecond, 3*time.Second
	for {
		err := b.offer(ctx, id, data, patience)
		if err == nil {
			return nil
		}
		if err, final := verdict(err); final {
			return err
		}
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			b.mend(ctx)
		}
		if !sleep(ctx, pause) {
			return fmt.Errorf("bus: publishing: %w; last: %w", context.Cause(ctx), err)
		}
		// Who is slow because there is too much to do must not get more of it.
		pause, patience = min(2*pause, time.Second), min(2*patience, 12*time.Second)
	}
}

// offer tries once.
func (b *Bus) offer(ctx context.Context, id string, data []byte, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := b.js.Publish(ctx, results, data,
		jetstream.WithMsgID(id), jetstream.WithExpectStream(streamName), jetstream.WithRetryAttempts(0))
	return err
}

// verdict says what a failure is to the caller, and whether another try is useless.
func verdict(err error) (error, bool) {
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
	case 10002, 10023, 10047: // resources of the account or of the server are used up
		return fmt.Errorf("%w: %s", ErrFull, api.Description), true
	case 10077: // not stored, and the text says why
		if strings.Contains(api.Description, "maximum bytes") {
			return fmt.Errorf("%w: %s", ErrFull, api.Description), true
		}
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %s", ErrTooLarge, api.Description), true
	}
	// The same id under way, or too many at once: these pass.
	if api.Code/100 == 4 && api.Code != 404 && api.Code != 408 && api.Code != 409 && api.Code != 429 {
		return fmt.Errorf("bus: publishing: %w", err), true
	}
	return err, false
}

// mend sets the stream and the consumer up anew if they are gone, as when a cluster
// was replaced under a running process. Many may call it; one does it, now and then.
func (b *Bus) mend(ctx context.Context) {
	if !b.mending.TryLock() {
		return
	}
	defer b.mending.Unlock()
	if time.Since(b.mended) < 2*time.Second {
		return
	}
	b.mended = time.Now()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := b.js.Consumer(ctx, streamName, consumerName)
	if !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return
	}
	b.log.Warn("the stream is gone: setting it up anew", "err", err)
	if _, err := b.ensure(ctx); err != nil {
		b.log.Warn("setting up the stream", "err", err)
	}
}
