package mtls

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

const (
	dialFor     = 15 * time.Second
	responseFor = time.Minute
	// stalledFor limits the time without progress while writing. silentFor limits the time
	// without data while reading, and is longer than the time limit for the beginning of a
	// response.
	stalledFor = 30 * time.Second
	silentFor  = responseFor + 15*time.Second
)

// Transport returns a transport for HTTP/2 with this TLS configuration, for slow and unreliable
// links. It aborts connections that make no progress, but not long responses that still make
// progress. It closes idle connections early, because the idle connections of a whole fleet
// would exhaust the server.
func Transport(config *tls.Config) *http.Transport {
	t := transport(config)
	t.DialContext = dialer.DialContext
	t.ForceAttemptHTTP2 = true
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: stalledFor}
	return t
}

// AgentTransport returns a transport for agents, which make individual calls at intervals.
// It uses HTTP/1.1: for thousands of agents, a server then needs a quarter less CPU time
// and a third less memory (decision 13). A response must not pause for more than a minute.
func AgentTransport(config *tls.Config) *http.Transport {
	t := transport(config)
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return deadlineConn{c, silentFor, stalledFor}, nil
	}
	return t
}

var dialer = &net.Dialer{Timeout: dialFor, KeepAlive: 30 * time.Second}

func transport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   dialFor,
		ResponseHeaderTimeout: responseFor,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConns:          4,
		MaxIdleConnsPerHost:   4,
		// A small limit suffices, because responses have few headers.
		MaxResponseHeaderBytes: 1 << 14,
	}
}

// deadlineConn is a connection that fails if there is no traffic. HTTP/2 sends pings to detect
// a dead link. With HTTP/1.1, only the kernel would detect it, after a quarter of an hour.
type deadlineConn struct {
	net.Conn
	silent, stalled time.Duration
}

func (c deadlineConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.silent)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write also extends the deadline of a pending Read. The transport starts to wait for the
// response when it sends the first byte of a request, and progress in sending shows that the
// link works.
func (c deadlineConn) Write(b []byte) (int, error) {
	now := time.Now()
	if err := errors.Join(c.SetReadDeadline(now.Add(c.silent)), c.SetWriteDeadline(now.Add(c.stalled))); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Client returns a client that does not follow redirects, but returns the redirect response.
func Client(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
