// Package api is an agent's HTTP interface for forecasts, readings and metrics. It includes
// a web page. It also writes forecasts as CSV files.
//
// Without a token, the interface listens only on the loopback address. openapi.json
// describes it.
package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed" // openapi.json
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"loadstar/agent/audit"
	"loadstar/agent/live"
	"loadstar/agent/readings"
	"loadstar/internal/connlimit"
	"loadstar/internal/service"
	"loadstar/internal/webui"
)

// Service makes forecasts. [live.Service] implements it.
type Service interface {
	Site() live.Site
	Clients() []live.ClientStatus
	Client(name string) (live.ClientStatus, error)
	Forecast(client string) (*live.Issued, error)
	Issued(client string, from, to int64, lead time.Duration) ([]live.Said, error)
	Readings(client string, from, to int64) (begin int64, load []float32, err error)
	Scores(client string) ([]live.Score, error)
	Quality(client string) (live.QualityReport, error)
	Models() []live.ModelStatus
	IssueNow(ctx context.Context, client string) (*live.Issued, error)
	NextIssue() time.Time
	Ready() error
	Counters() live.Counters
}

// Config configures the interface.
type Config struct {
	Service Service
	// Intake stores readings and weather. If it is nil, they are refused.
	Intake *readings.Intake
	// Audits audits clients; nil means that the agent does not train.
	Audits *audit.Auditor
	// Listen is the address to listen on. Only loopback addresses need no token.
	Listen string
	// TokenFile contains the token that requests must carry. It may be empty.
	TokenFile string
	// More adds handlers for other paths, and may be nil. They are protected like the others.
	More func(*http.ServeMux)
	// Now returns the time; nil means time.Now.
	Now func() time.Time
}

// Limits of the interface.
const (
	maxRequests    = 32 // concurrent requests
	maxConnections = 256
	// maxAnonymous and anonymousOfAddress limit the connections that have not sent the token.
	maxAnonymous       = maxConnections / 4
	anonymousOfAddress = maxAnonymous / 4
	addressRate        = 20 // new connections per second of one address
	minToken           = 16 // characters
)

//go:embed openapi.json
var openAPI []byte

// Server answers requests.
type Server struct {
	c     Config
	token [sha256.Size]byte // hash of the token
	auth  bool
	local bool // the interface listens only on the machine itself
	busy  chan struct{}
}

// New checks the configuration and reads the token.
func New(c Config) (*Server, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Audits == nil {
		c.Audits = &audit.Auditor{}
	}
	s := &Server{c: c, busy: make(chan struct{}, maxRequests)}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("http listen %q: write HOST:PORT, such as 127.0.0.1:7446", c.Listen)
	}
	s.local = loopback(host)
	if c.TokenFile == "" {
		if !s.local {
			return nil, fmt.Errorf("http listen %s can be reached from other machines: set token_file, or listen on 127.0.0.1", c.Listen)
		}
		return s, nil
	}
	info, err := os.Stat(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the token of the HTTP interface: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("every user of this machine can use the token in %s; run chmod 600", c.TokenFile)
	}
	data, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the token of the HTTP interface: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken {
		return nil, fmt.Errorf("the token in %s has %d characters, want at least %d; create one with: (umask 077; openssl rand -hex 24 > FILE)", c.TokenFile, len(token), minToken)
	}
	s.token, s.auth = sha256.Sum256([]byte(token)), true
	return s, nil
}

// loopback reports whether an address is the machine's own.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Run answers requests until the context ends.
func (s *Server) Run(ctx context.Context) error {
	listener, err := service.Listen("http.listen", s.c.Listen)
	if err != nil {
		return err
	}
	return s.Serve(ctx, listener)
}

// Serve is like Run, but uses the given listener, and closes it.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	limits := s.limits()
	server := &http.Server{
		Handler: limits.Handler(s.Handler()), ConnContext: limits.Context, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 60 * time.Second, IdleTimeout: 60 * time.Second, MaxHeaderBytes: 16 << 10,
	}
	return service.Serve(ctx, server, 5*time.Second, func() error {
		return server.Serve(limits.Listener(listener))
	})
}

// limits returns the limits on connections. Without a token, all callers are users of this
// machine and count as one, so a new connection closes an older one. With a token, callers that
// have not sent it share a few connections, which close after the response.
func (s *Server) limits() *connlimit.Limiter {
	c := connlimit.Config{
		Connections: maxConnections, Anonymous: maxAnonymous, OfAddress: anonymousOfAddress,
		OfCaller: map[string]int{connlimit.User: maxConnections - maxAnonymous},
		Who: func(r *http.Request) (connlimit.Caller, bool) {
			return connlimit.Caller{Kind: connlimit.User}, !s.auth || s.allowed(r)
		},
		Limited: func(string, connlimit.Caller) {}, // the agent's metrics do not count connections
	}
	if !s.local { // otherwise all callers share one address
		c.Rate = addressRate
	}
	return connlimit.New(c)
}

// Handler returns the handler for all paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	paths := map[string][]string{}
	handle := func(method, path string, f func(w http.ResponseWriter, r *http.Request)) {
		mux.HandleFunc(method+" "+path, f)
		paths[path] = append(paths[path], method)
	}
	handle("GET", "/v1/clients", s.clients)
	handle("GET", "/v1/forecasts/{client}", s.forecast)
	handle("POST", "/v1/forecasts/{client}", s.issueNow)
	handle("GET", "/v1/forecasts/{client}/issued", s.issued)
	handle("GET", "/v1/readings/{client}", s.readings)
	handle("GET", "/v1/scores/{client}", s.scores)
	handle("GET", "/v1/quality/{client}", s.quality)
	handle("GET", "/v1/audit/{client}", s.audit)
	handle("POST", "/v1/audit/{client}", s.startAudit)
	handle("GET", "/v1/models", s.models)
	handle("GET", "/openapi.json", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, "application/json", openAPI, 3600) })
	handle("GET", "/healthz", func(w http.ResponseWriter, _ *http.Request) { send(w, map[string]string{"status": "ok"}) })
	handle("GET", "/readyz", s.ready)
	handle("GET", "/metrics", s.metrics)
	page := webui.Agent()
	mux.Handle("GET /{$}", page)
	mux.Handle("GET /ui/", page)
	if s.c.Intake != nil {
		take := s.c.Intake.Handler()
		handle("POST", "/v1/readings", take.ServeHTTP)
		handle("POST", "/v1/weather", take.ServeHTTP)
	}
	if s.c.More != nil {
		s.c.More(mux)
	}
	known := http.NewServeMux() // the same paths, for requests with another method
	for path, methods := range paths {
		known.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			service.Problem(w, http.StatusMethodNotAllowed, "method", fmt.Sprintf("%s is not possible here, only %s", r.Method, strings.Join(methods, ", ")), nil)
		})
	}
	known.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		service.Problem(w, http.StatusNotFound, "path", "there is nothing here; /openapi.json lists all paths", nil)
	})
	mux.Handle("/", known)
	// A web page in a browser on this machine can send simple requests to the interface, so
	// requests from other origins must not change anything.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		service.Problem(w, http.StatusForbidden, "origin", "requests of web pages from elsewhere are refused", nil)
	}))
	return s.guard(origin.Handler(mux))
}

// guard refuses requests that must not reach the handlers.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if s.local && !localHost(r.Host) {
			// Otherwise a web page whose host name resolves to this machine could read everything.
			service.Problem(w, http.StatusMisdirectedRequest, "host", "the Host header must be localhost or a loopback address", nil)
			return
		}
		if s.auth && !s.allowed(r) {
			if public(r.URL.Path) { // a stranger who reads slowly must not occupy one of the request slots
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="loadstar"`)
			service.Problem(w, http.StatusUnauthorized, "token", "send the header Authorization: Bearer TOKEN, with the token of the agent's token_file", nil)
			return
		}
		select {
		case s.busy <- struct{}{}:
			defer func() { <-s.busy }()
		default:
			w.Header().Set("Retry-After", "1")
			service.Problem(w, http.StatusServiceUnavailable, "busy", fmt.Sprintf("%d requests are being answered; try again", maxRequests), nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// public reports whether a path needs no token. A browser cannot send a token when it opens
// the page. The page contains no readings and sends the token with its own requests.
func public(path string) bool {
	return path == "/healthz" || path == "/" || strings.HasPrefix(path, "/ui/")
}

// localHost reports whether a Host header names the machine itself.
func localHost(header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.Trim(header, "[]")
	}
	return loopback(strings.ToLower(host))
}

// allowed checks the token. Comparing hashes takes the same time for every token.
func (s *Server) allowed(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(token))
	return ok && subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1
}
