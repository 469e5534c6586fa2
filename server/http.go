package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"loadstar/internal/graceful"
)

func newHTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		// The timeout is long because links may be slow. A request is also limited by the
		// maximum size of its body.
		ReadTimeout: 10 * time.Minute,
		// Small frames save memory: every connection buffers a whole frame, even before the
		// caller is authenticated.
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 64, MaxReadFrameSize: 64 << 10},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // failed handshakes are not worth logging
	}
}

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := newHTTP(h)
	return graceful.Serve(ctx, s, shutdownGrace, func() error { return s.Serve(l) })
}

// monitoring serves metrics and health checks.
func (s *server) monitoring() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !s.ready.Load() {
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

// maxConnections limits the memory of connections: about 100 kB for each agent that is
// sending (loadstar bench fleet). Further connections wait until one is closed; idle
// connections are closed soon.
const maxConnections = 16 << 10
