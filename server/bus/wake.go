package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// maxRun is the length of the longest run name that is passed on.
const maxRun = 256

// Wake notifies the listeners in all processes that something happened in a run. The
// notification is not stored, so listeners must also poll.
func (b *Bus) Wake(run string) {
	if err := b.conn.Publish(wakeSubject, []byte(run)); err != nil {
		b.log.Debug("cannot send a notification", "run", run, "err", err)
	}
}

// Woken returns a channel with the runs that Wake was called for. The channel is closed
// when ctx is done or the bus is closed. Notifications are dropped while the channel is
// full.
func (b *Bus) Woken(ctx context.Context) (<-chan string, error) {
	ctx, cancel := endingWith(ctx, b.closing)
	in, out := make(chan *nats.Msg, 256), make(chan string, 64)
	sub, err := b.conn.ChanSubscribe(wakeSubject, in)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("bus: subscribing to notifications: %w", err)
	}
	err = b.spawn(func() {
		defer cancel()
		defer close(out)
		// Unsubscribe fails if the connection is already closed, which is harmless.
		defer func() { _ = sub.Unsubscribe() }()
		for {
			select {
			case <-ctx.Done():
				return
			case m, ok := <-in:
				if !ok {
					return
				}
				if len(m.Data) == 0 || len(m.Data) > maxRun {
					continue
				}
				select {
				case out <- string(m.Data):
				default:
				}
			}
		}
	})
	if err != nil {
		cancel()
		return nil, err
	}
	// After the flush the server knows the subscription, so no later notification is
	// missed. Without a connection there are no notifications to miss.
	_ = b.conn.FlushTimeout(2 * time.Second)
	return out, nil
}
