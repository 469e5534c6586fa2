package fleetload

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bare is a set of connections to a server that only answers, to measure the cost of the
// connections and bytes of a fleet.
type Bare struct {
	lines []*line
	short bool
	bytes atomic.Int64
}

// Dial opens the connections. If short is set, a connection is opened for each call instead.
func Dial(ctx context.Context, server string, config *tls.Config, connections int, short bool) (*Bare, error) {
	at, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	b := &Bare{lines: make([]*line, connections), short: short}
	for i := range b.lines {
		b.lines[i] = &line{server: at, config: config, from: source(at, i), bytes: &b.bytes}
	}
	if short {
		return b, nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(dialers)
	for _, l := range b.lines {
		group.Go(func() error { return l.echo(ctx, nil) })
	}
	return b, group.Wait()
}

// Call calls the server over all connections in turn for the duration d. Messages have the
// given size in both directions. Call returns the number of calls.
func (b *Bare) Call(ctx context.Context, size int, d time.Duration) (int64, error) {
	var calls atomic.Int64
	end := time.Now().Add(d)
	message := make([]byte, size)
	group, ctx := errgroup.WithContext(ctx)
	for w := range dialers {
		group.Go(func() error {
			for i := w; time.Now().Before(end) && len(b.lines) > w; i += dialers {
				if i >= len(b.lines) {
					i = w
				}
				if err := b.lines[i].echo(ctx, message); err != nil {
					return err
				}
				if b.short {
					b.lines[i].close()
				}
				calls.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return calls.Load(), err
}

// Close closes the connections.
func (b *Bare) Close() {
	for _, l := range b.lines {
		l.close()
	}
}

// echo sends a message and reads one of the same size.
func (l *line) echo(ctx context.Context, message []byte) error {
	r := requests.Get().(*bytes.Buffer)
	defer requests.Put(r)
	r.Reset()
	fmt.Fprintf(r, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", l.server.Host, len(message))
	if _, err := r.Write(message); err != nil {
		return err
	}
	return l.exchange(ctx, r.Bytes(), func(code int, body io.Reader) error {
		n, err := io.Copy(io.Discard, limited(body))
		if err == nil && (code != http.StatusOK || n != int64(len(message))) {
			err = fmt.Errorf("the bare server returned %d with %d bytes, want %d bytes", code, n, len(message))
		}
		return err
	})
}
