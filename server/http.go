package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func newHTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		// Bodies come over bad links: what bounds them is their size, and this.
		ReadTimeout: 10 * time.Minute,
		// A frame is held whole for each connection, also of strangers.
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 64, MaxReadFrameSize: 64 << 10},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // handshakes of strangers
	}
}

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := newHTTP(h)
	return untilDone(ctx, s, func() error { return s.Serve(l) })
}

// untilDone serves until the context ends, and lets calls under way finish.
func untilDone(ctx context.Context, s *http.Server, serve func() error) error {
	failed := make(chan error, 1)
	go func() { failed <- serve() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := s.Shutdown(end); err != nil {
		s.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// watch serves metrics and health.
func (s *server) watch() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !s.up.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		for what, err := range map[string]error{"ledger": s.ledger.Healthy(ctx), "bus": s.bus.Healthy()} {
			if err != nil {
				http.Error(w, what+": "+err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}

// maxConnections bounds what connections take of the memory: about 100 kB each of agents
// that send (loadstar bench fleet).
const maxConnections = 16 << 10

// bounded is a listener of which so many connections are open at a time. Others wait
// until one is closed, which is soon for those that say nothing.
type bounded struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	close  func() error
}

func newBounded(l net.Listener, most int) *bounded {
	b := &bounded{Listener: l, room: make(chan struct{}, most), closed: make(chan struct{})}
	b.close = sync.OnceValue(func() error {
		close(b.closed)
		return l.Close()
	})
	return b
}

func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.room <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.room
		return nil, err
	}
	return &boundedConn{c, sync.OnceFunc(func() { <-b.room })}, nil
}

func (b *bounded) Close() error { return b.close() }

type boundedConn struct {
	net.Conn
	leave func()
}

func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
