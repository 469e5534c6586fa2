package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// Limits on concurrent calls. They apply before a body is read, when only the caller is
// known.
const (
	// callsOfAgent is more than the number of calls that an agent needs at a time to check
	// in, send and fetch.
	callsOfAgent = 8
	bytesOfAgent = 2 * messageBytes
	bytesOfAll   = 256 << 20
	// Callers without a certificate may only join, for which a small message is enough.
	unauthenticatedCalls = 64
	joinBytes            = 16 << 10
	joinFor              = 30 * time.Second
)

// calls counts the calls in progress and the memory of their bodies. A body is read
// completely before it is decoded, so limits on both bound the memory.
type calls struct {
	mu      sync.Mutex
	bytes   int64
	byAgent map[string]inProgress // callers without a certificate share one entry
}

type inProgress struct {
	calls int
	bytes int64
}

// enter registers a call with a body of the given size, and reports whether the limits
// allow it.
func (c *calls) enter(who string, most int, bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.byAgent[who]
	if has.calls >= most || has.bytes+bytes > bytesOfAgent || c.bytes+bytes > bytesOfAll {
		return false
	}
	c.bytes += bytes
	c.byAgent[who] = inProgress{has.calls + 1, has.bytes + bytes}
	return true
}

func (c *calls) leave(who string, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.byAgent[who]
	c.bytes -= bytes
	if has.calls--; has.calls == 0 {
		delete(c.byAgent, who)
		return
	}
	has.bytes -= bytes
	c.byAgent[who] = has
}

const unauthenticated = ""

// admit accepts or refuses a call before its body is read. An agent may make a few calls at
// a time, and a caller without a certificate may only join.
func (g *Gateway) admit(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, most, bytes := unauthenticated, unauthenticatedCalls, bodyBytes(r)
		refuse := func(reason string, code connect.Code, text string) {
			g.metrics.refused.WithLabelValues(reason).Inc()
			_ = errorWriter.Write(w, r, connect.NewError(code, errors.New(text))) // a failed write means that the caller has gone
		}
		if r.URL.Path == v1.AgentServiceJoinProcedure {
			// Limit the body to joinBytes, whatever length the request declares.
			r.Body, bytes = http.MaxBytesReader(w, r.Body, joinBytes), joinBytes
			// If this fails, the server's own deadline still applies.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(joinFor))
		} else {
			id, ok := pki.From(r.Context())
			if !ok || id.Role != pki.Agent {
				refuse("identity", connect.CodeUnauthenticated, "this call needs an agent's certificate")
				return
			}
			who, most = id.ID, callsOfAgent
		}
		if bytes > messageBytes {
			refuse("size", connect.CodeResourceExhausted, "the message is too large")
			return
		}
		if !g.calls.enter(who, most, bytes) {
			refuse("busy", connect.CodeResourceExhausted, "too many concurrent calls; try again later")
			return
		}
		defer g.calls.leave(who, bytes)
		var read bool
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), readKey{}, &read)))
		if !read {
			g.metrics.refused.WithLabelValues("body").Inc()
		}
	})
}

// bodyBytes returns the maximum memory that a body needs. For a compressed or chunked body
// the header does not say it, so the maximum message size is assumed.
func bodyBytes(r *http.Request) int64 {
	if r.ContentLength < 0 || r.Header.Get("Content-Encoding") != "" || r.Header.Get("Content-Type") != "application/proto" {
		return messageBytes
	}
	return r.ContentLength
}

// readKey is the context key for whether a call's body was decoded.
type readKey struct{}

func wasRead(ctx context.Context) {
	if read, ok := ctx.Value(readKey{}).(*bool); ok {
		*read = true
	}
}
