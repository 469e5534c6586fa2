// Package web serves the dashboard: the page, its sessions and events, and the operators' API
// for browsers. It has a separate listener, because the port for agents would ask a browser for
// a client certificate.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"loadstar/internal/connlimit"
	"loadstar/internal/service"
	"loadstar/internal/webui"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
)

// Config configures the dashboard.
type Config struct {
	// Listen is the address to listen on. An address other than loopback needs CertFile
	// and KeyFile, or BehindProxy.
	Listen            string
	CertFile, KeyFile string
	BehindProxy       bool
	// URL is the address at which browsers reach the page. Empty means Listen.
	URL string
	// OIDC lets people sign in with a provider. It may be nil.
	OIDC *OIDC
	// ReadOnly makes every user of the dashboard a viewer.
	ReadOnly bool
	// Notice is shown on every page, and Links next to it. They may be empty.
	Notice string
	Links  []Link
	// Ready is called with the address of the page when the dashboard listens. It may be nil.
	Ready func(url string)
}

// Link is a link that every page shows.
type Link struct {
	Title string `json:"title"`
	URL   string `json:"url"`
}

// API is the operators' API. The context of a call must carry an access.Caller.
type API interface {
	v1.OperatorServiceHandler
	Handler() http.Handler
}

// Services are the parts of the server that the dashboard uses.
type Services struct {
	API    API
	Access *access.Gate
	Log    *slog.Logger
	// AddressRate is the number of new connections that an address may open per second. If it
	// is 0, addresses are not limited.
	AddressRate float64
	// Limited records the callers to whom limits were applied.
	Limited *access.LimitReport
}

// Web is a dashboard that listens.
type Web struct {
	Config
	Services
	listener net.Listener
	loopback bool
	hub      *hub
	limits   *connlimit.Limiter
	logins   *connlimit.Rates // attempts to sign in, by address
	// checking and calling limit the number of browsers' concurrent queries, so that these
	// cannot take all database connections from the agents.
	checking, calling chan struct{}
}

const (
	maxConnections = 1024
	// maxAnonymous is the maximum number of connections without a session. It leaves most
	// connections to signed-in users.
	maxAnonymous       = maxConnections / 4
	anonymousOfAddress = maxAnonymous / 4
	// connectionsOfUser exceeds the number of streams that a user may have.
	connectionsOfUser = 2 * viewersOfUser
	maxChecks         = 4
	maxCalls          = 8
	loginsASecond     = 20
	maxAddresses      = 1 << 14
	headerBytes       = 16 << 10
	shutdownGrace     = 5 * time.Second
)

// Check returns an error if the configuration is unsafe or incomplete.
func (c Config) Check() error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("the dashboard needs a certificate and its key: give both web.cert_file and web.key_file, or neither")
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("%q is not an address for the dashboard: want HOST:PORT, such as 127.0.0.1:7445", c.Listen)
	}
	if !isLoopback(host) && c.CertFile == "" && !c.BehindProxy {
		return fmt.Errorf("the dashboard at %s could be reached from other machines without encryption; give web.cert_file and web.key_file, or web.behind_proxy if a proxy in front of it has the certificate, or listen on 127.0.0.1", c.Listen)
	}
	if u, err := url.Parse(c.URL); c.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("%q is not the address of a page: want https://HOST/", c.URL)
	}
	if c.OIDC != nil {
		return c.OIDC.Check()
	}
	return nil
}

// Open checks the configuration and opens the listener. Close or Run closes it.
func Open(c Config) (*Web, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, err
	}
	w := &Web{
		Config: c, loopback: isLoopback(host), logins: connlimit.NewRates(loginsASecond, loginsASecond, maxAddresses),
		checking: make(chan struct{}, maxChecks), calling: make(chan struct{}, maxCalls),
	}
	if w.listener, err = service.Listen("--web", c.Listen); err != nil {
		return nil, err
	}
	if w.Config.URL == "" {
		w.Config.URL = w.address(host)
	}
	if !strings.HasSuffix(w.Config.URL, "/") {
		w.Config.URL += "/"
	}
	if w.Ready != nil {
		w.Ready(w.Config.URL)
	}
	return w, nil
}

// address returns the address of the page on this machine or on the given host.
func (w *Web) address(host string) string {
	_, port, _ := net.SplitHostPort(w.listener.Addr().String()) // a listener's address has a port
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	scheme := "http://"
	if w.CertFile != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port) + "/"
}

// URL returns the address of the page. It ends with a slash.
func (w *Web) URL() string { return w.Config.URL }

// Address returns the address on which the dashboard listens.
func (w *Web) Address() string { return w.listener.Addr().String() }

// Close closes the listener of a dashboard that is not running.
func (w *Web) Close() error { return w.listener.Close() }

// Run serves the dashboard until ctx ends.
func (w *Web) Run(ctx context.Context, s Services) error {
	w.start(ctx, s)
	return w.serve(ctx)
}

// start prepares the dashboard for requests.
func (w *Web) start(ctx context.Context, s Services) {
	w.Services = s
	w.hub = newHub(ctx, s.API)
	rate := s.AddressRate
	if w.BehindProxy || w.loopback { // all callers have one address
		rate = 0
	}
	w.limits = connlimit.New(connlimit.Config{
		Connections: maxConnections, Anonymous: maxAnonymous, OfAddress: anonymousOfAddress,
		OfCaller: map[string]int{connlimit.User: connectionsOfUser}, Rate: rate, Limited: s.Limited.Limited,
	})
}

func (w *Web) serve(ctx context.Context) error {
	defer func() { _ = w.Close() }() // the server has already closed the listener
	defer w.hub.close()
	h := &http.Server{
		Handler: w.handler(), MaxHeaderBytes: headerBytes, ConnContext: w.limits.Context,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // failed handshakes are not worth logging
	}
	l := w.limits.Listener(w.listener)
	serve := func() error { return h.Serve(l) }
	if w.CertFile != "" {
		certificate, err := newCertificate(w.CertFile, w.KeyFile)
		if err != nil {
			return err
		}
		h.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.get}
		serve = func() error { return h.ServeTLS(l, "", "") }
	}
	return service.Serve(ctx, h, shutdownGrace, serve)
}

// handler returns the handler of all routes.
func (w *Web) handler() http.Handler {
	api := http.NewServeMux()
	api.HandleFunc("GET /api/info", w.info)
	api.HandleFunc("POST /api/login", w.login)
	api.HandleFunc("POST /api/logout", w.logout)
	if w.OIDC != nil {
		s := newSigner(w)
		api.HandleFunc("GET "+oidcStart, s.start)
		api.HandleFunc("GET "+oidcCallback, s.callback)
	}
	api.HandleFunc("GET /api/events", w.events)
	api.HandleFunc("POST /api/"+v1.OperatorServiceName+"/{method}", w.call)
	api.HandleFunc("/api/", func(rw http.ResponseWriter, r *http.Request) {
		refuse(rw, http.StatusNotFound, "not_found", "there is no "+r.Method+" "+r.URL.Path)
	})
	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		refuse(rw, http.StatusForbidden, "permission_denied", "this request comes from another site")
	}))
	mux := http.NewServeMux()
	mux.Handle("/api/", noStore(sameOrigin.Handler(api)))
	runbooks(mux)
	page := webui.Server()
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			refuse(rw, http.StatusMethodNotAllowed, "unimplemented", "the page is read-only")
			return
		}
		page.ServeHTTP(rw, r)
	})
	return w.guard(mux)
}
