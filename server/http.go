package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"loadstar/internal/connlimit"
	"loadstar/internal/service"
	"loadstar/server/pki"
)

func newHTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		// The timeout is long because links may be slow. The time limit for a request's body
		// also depends on the body's maximum size.
		ReadTimeout: 10 * time.Minute,
		// Small frames save memory, because every connection buffers a whole frame, even
		// before the caller is authenticated.
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 64, MaxReadFrameSize: 64 << 10},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // failed handshakes are not worth logging
	}
}

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := newHTTP(h)
	return service.Serve(ctx, s, shutdownGrace, func() error { return s.Serve(l) })
}

// monitoring serves metrics and health checks.
func (s *server) monitoring() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /limited", s.limited)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !s.ready.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := s.ledger.Store.Healthy(ctx); err != nil {
			http.Error(w, "ledger: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}

// Limits on connections. An agent that is sending needs about 100 kB of memory (loadstar
// bench fleet). Idle connections are closed soon.
const (
	maxConnections = 16 << 10
	// maxAnonymous is the maximum number of connections without a certificate. It leaves most
	// connections to callers with a certificate.
	maxAnonymous = maxConnections / 4
	// anonymousOfAddress exceeds the number of agents behind one address that connect at the
	// same moment. A connection is anonymous until its first call.
	anonymousOfAddress = 256
	// connectionsOfAgent exceeds the number of connections that an agent needs for its calls,
	// even if it has restarted and old connections are still open.
	connectionsOfAgent = 32
	connectionsOfUser  = 256
	// The listener for operators needs fewer connections.
	operatorConnections = 1024
)

func (s *server) limitAgents() *connlimit.Limiter {
	return connlimit.New(connlimit.Config{
		Connections: maxConnections, Anonymous: maxAnonymous, OfAddress: anonymousOfAddress,
		OfCaller: map[string]int{connlimit.Agent: connectionsOfAgent, connlimit.User: connectionsOfUser},
		Rate:     s.AddressRate, Who: byCertificate, Limited: s.limited.Limited,
	})
}

func (s *server) limitOperators() *connlimit.Limiter {
	return connlimit.New(connlimit.Config{
		Connections: operatorConnections, Anonymous: operatorConnections / 4, OfAddress: operatorConnections / 16,
		OfCaller: map[string]int{connlimit.Agent: 1, connlimit.User: connectionsOfUser},
		Rate:     s.AddressRate, Who: byCertificate, Limited: s.limited.Limited,
	})
}

// byCertificate returns the agent or user whose certificate a request presents.
// pki.Authority.Middleware has put it into the context.
func byCertificate(r *http.Request) (connlimit.Caller, bool) {
	who, ok := pki.From(r.Context())
	kind := connlimit.Agent
	if who.Role == pki.Operator {
		kind = connlimit.User
	}
	return connlimit.Caller{Kind: kind, Name: who.ID}, ok
}

// serveTLS serves callers with and without certificates, and limits their connections.
func (s *server) serveTLS(ctx context.Context, l net.Listener, settings *tls.Config, h http.Handler, limits *connlimit.Limiter) error {
	own := newHTTP(s.authority.Middleware(limits.Handler(h)))
	own.TLSConfig, own.ConnContext = settings, limits.Context
	return service.Serve(ctx, own, shutdownGrace, func() error { return own.ServeTLS(limits.Listener(l), "", "") })
}

// addressOf returns the address at which agents reach a listener.
func (s *server) addressOf(l net.Listener) string {
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil || len(s.Hosts) == 0 {
		return "" // not a TCP listener, or a test without names
	}
	return "https://" + net.JoinHostPort(s.Hosts[0], port)
}

// The errors of calls that arrive at the wrong port. An agent interprets "permission denied" as
// its revocation and exits. After "unavailable", it keeps its results and retries.
var (
	errForAgents    = connect.NewError(connect.CodePermissionDenied, errors.New("this address is for agents only; operators use a separate address (operators in server.yaml)"))
	errForOperators = connect.NewError(connect.CodeUnavailable, errors.New("this address is for operators only; agents use the address of serve --listen"))
)

// elsewhere refuses all calls with an error.
func elsewhere(err error) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = errorWriter.Write(w, r, err) // a failed write means that the caller has disconnected
	})
}
