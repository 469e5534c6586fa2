package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

// attackersFrom is the address of the strangers. Half of the honest agents have the same
// address.
const attackersFrom = "127.0.0.1"

// holder holds connections open. It reopens those that the server closes.
type holder struct {
	ctx                  context.Context
	server               *Server
	open, opened, failed atomic.Int64
	dialing              chan struct{}
}

func newHolder(ctx context.Context, s *Server) *holder {
	return &holder{ctx: ctx, server: s, dialing: make(chan struct{}, 64)}
}

// hold keeps a connection open. use is called with each connection, and returns when the
// connection is no longer useful. Without a configuration the connection has no TLS.
func (h *holder) hold(config *tls.Config, use func(io.ReadWriter) error) {
	go func() {
		for h.ctx.Err() == nil {
			c, err := h.dial(config)
			if err == nil {
				h.open.Add(1)
				h.opened.Add(1)
				stop := context.AfterFunc(h.ctx, func() { c.Close() })
				_ = use(c) // open the next connection, however this one ended
				stop()
				c.Close()
				h.open.Add(-1)
			} else {
				h.failed.Add(1)
			}
			select {
			case <-h.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
}

func (h *holder) dial(config *tls.Config) (net.Conn, error) {
	h.dialing <- struct{}{}
	defer func() { <-h.dialing }()
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(h.ctx, "tcp", h.server.Host)
	if err != nil || config == nil {
		return c, err
	}
	config = config.Clone()
	config.NextProtos, config.ServerName = []string{"http/1.1"}, "127.0.0.1"
	t := tls.Client(c, config)
	ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// wait returns when the given number of connections is open, or when the server accepts no
// more from the holder.
func (h *holder) wait(n int) error {
	var before int64
	for still := 0; still < 6; {
		select {
		case <-h.ctx.Done():
			return h.ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
		now := h.open.Load()
		if now >= int64(n) {
			return nil
		}
		if now <= before {
			still++
		}
		before = max(before, now)
	}
	if h.opened.Load() == 0 {
		return errors.New("no connection could be opened")
	}
	return nil
}

func (h *holder) done() string {
	return fmt.Sprintf("the flood holds %d connections, opened %d, and failed to open %d", h.open.Load(), h.opened.Load(), h.failed.Load())
}

// manyConnections is more than the limit of the server.
const manyConnections = 17_000

// enoughFiles returns an error if the process cannot open enough files for the connections.
func enoughFiles() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Cur < manyConnections+1000 {
		return fmt.Errorf("the flood needs %d open files, and the limit is %d", manyConnections+1000, l.Cur)
	}
	return nil
}

// anonymousCalls is a flood by strangers who keep connections open. They request a nonexistent
// page every 40 seconds, before the server would close an idle connection.
func anonymousCalls(ctx context.Context, s *Server) ([]string, func() string, error) {
	config, err := s.Anonymous()
	if err != nil {
		return nil, nil, err
	}
	if err := enoughFiles(); err != nil {
		return nil, nil, err
	}
	h := newHolder(ctx, s)
	for range manyConnections {
		h.hold(config, func(c io.ReadWriter) error {
			r := bufio.NewReaderSize(c, 512)
			for {
				if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					return err
				}
				answer, err := http.ReadResponse(r, nil)
				if err != nil {
					return err
				}
				if _, err := io.Copy(io.Discard, answer.Body); err != nil {
					return err
				}
				if answer.Close {
					return nil
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(40 * time.Second):
				}
			}
		})
	}
	return []string{attackersFrom}, h.done, h.wait(manyConnections - 500)
}

// bareConnections is a flood by strangers who connect and send nothing.
func bareConnections(ctx context.Context, s *Server) ([]string, func() string, error) {
	if err := enoughFiles(); err != nil {
		return nil, nil, err
	}
	h := newHolder(ctx, s)
	for range manyConnections {
		h.hold(nil, func(c io.ReadWriter) error {
			_, err := c.Read(make([]byte, 1))
			return err
		})
	}
	return []string{attackersFrom}, h.done, h.wait(manyConnections - 500)
}
