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
	dialFor   = 15 * time.Second
	answerFor = time.Minute
	// stalledFor is how long a link may take nothing, silentFor how long it may bring
	// nothing after that: longer than an answer may take to begin.
	stalledFor = 30 * time.Second
	silentFor  = answerFor + 15*time.Second
)

// Transport returns HTTP/2 connections with this TLS, for links that are slow or go
// away without a word: what makes no progress is given up, a long answer that does
// is not. Idle connections are closed soon, because a fleet's would fill the server.
func Transport(config *tls.Config) *http.Transport {
	t := transport(config)
	t.DialContext = dialer.DialContext
	t.ForceAttemptHTTP2 = true
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: stalledFor}
	return t
}

// AgentTransport is Transport for agents, which call now and then and one call after the
// other: HTTP/1.1 takes a server of thousands of them a quarter less time and a third less
// memory (ADR 13). An answer must not pause for over a minute.
func AgentTransport(config *tls.Config) *http.Transport {
	t := transport(config)
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return moving{c, silentFor, stalledFor}, nil
	}
	return t
}

var dialer = &net.Dialer{Timeout: dialFor, KeepAlive: 30 * time.Second}

func transport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   dialFor,
		ResponseHeaderTimeout: answerFor,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConns:          4,
		MaxIdleConnsPerHost:   4,
		// A page of headers is plenty.
		MaxResponseHeaderBytes: 1 << 14,
	}
}

// moving is a connection that fails when nothing moves on it. HTTP/2 asks the other end
// whether it is there; here a dead link would be noticed by the kernel alone, after a
// quarter of an hour.
type moving struct {
	net.Conn
	silent, stalled time.Duration
}

func (m moving) Read(b []byte) (int, error) {
	if err := m.SetReadDeadline(time.Now().Add(m.silent)); err != nil {
		return 0, err
	}
	return m.Conn.Read(b)
}

// Write also puts off the end of a Read under way: the transport waits for an answer from
// the first byte of a request on, and what is sent is a sign of life.
func (m moving) Write(b []byte) (int, error) {
	now := time.Now()
	if err := errors.Join(m.SetReadDeadline(now.Add(m.silent)), m.SetWriteDeadline(now.Add(m.stalled))); err != nil {
		return 0, err
	}
	return m.Conn.Write(b)
}

// Client returns a client that goes where it is told and nowhere else: an answer that
// sends it elsewhere is returned as it is.
func Client(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
