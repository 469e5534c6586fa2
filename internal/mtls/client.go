package mtls

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// Transport returns HTTP/2 connections with this TLS, for links that are slow or go
// away without a word: what makes no progress is given up, a long answer that does
// is not. Idle connections are closed soon, because a fleet's would fill the server.
func Transport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConns:          4,
		// A page of headers is plenty.
		MaxResponseHeaderBytes: 1 << 14,
		ForceAttemptHTTP2:      true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: 30 * time.Second,
		},
	}
}

// Client returns a client that goes where it is told and nowhere else: an answer that
// sends it elsewhere is returned as it is.
func Client(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
