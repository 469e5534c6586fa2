package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// maxRun is the length of the longest name of a run that is passed on.
const maxRun = 256

// Wake tells whoever listens, in any process, that something happened in a run. It is
// not stored, and who does not hear it must find out by looking.
func (b *Bus) Wake(run string) {
	if err := b.conn.Publish(wakes, []byte(run)); err != nil {
		b.log.Debug("waking", "run", run, "err", err)
	}
}

// Woken returns the runs of Wake, until ctx is done or the bus is closed; then it
// closes the channel. Hints that come while the channel is full are dropped.
func (b *Bus) Woken(ctx context.Context) (<-chan string, error) {
	ctx, cancel := endingWith(ctx, b.closing)
	in, out := make(chan *nats.Msg, 256), make(chan string, 64)
	sub, err := b.conn.ChanSubscribe(wakes, in)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("bus: listening: %w", err)
	}
	err = b.spawn(func() {
		defer cancel()
		defer close(out)
		defer func() { _ = sub.Unsubscribe() }() // the connection may be gone
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
	// From here on nothing is missed. Without a connection there is nothing to miss.
	_ = b.conn.FlushTimeout(2 * time.Second)
	return out, nil
}
