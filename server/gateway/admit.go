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

// What may be under way at a time, before anything is known of it but who sends it.
const (
	// callsOfAgent is more than an agent has: it checks in, sends and fetches.
	callsOfAgent = 8
	bytesOfAgent = 2 * messageBytes
	bytesOfAll   = 256 << 20
	// Strangers may join, and need a page for it.
	callsOfStrangers = 64
	joinBytes        = 16 << 10
	joinFor          = 30 * time.Second
)

// calls are those under way. A body is read whole before it is looked at, so what is
// let in here is what bodies can take of the memory.
type calls struct {
	mu      sync.Mutex
	bytes   int64
	byAgent map[string]underWay // callers without a certificate share one entry
}

type underWay struct {
	calls int
	bytes int64
}

// enter lets a call of so many bytes in, or says that there is no room for it.
func (c *calls) enter(who string, most int, bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.byAgent[who]
	if has.calls >= most || has.bytes+bytes > bytesOfAgent || c.bytes+bytes > bytesOfAll {
		return false
	}
	c.bytes += bytes
	c.byAgent[who] = underWay{has.calls + 1, has.bytes + bytes}
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

const stranger = ""

// admit decides on a call before any of its body is read: agents may call, a few at a
// time each, and strangers may join.
func (g *Gateway) admit(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, most, bytes := stranger, callsOfStrangers, bodyBytes(r)
		refuse := func(reason string, code connect.Code, text string) {
			g.metrics.refused.WithLabelValues(reason).Inc()
			_ = errorWriter.Write(w, r, connect.NewError(code, errors.New(text))) // a failed write means that the caller has gone
		}
		if r.URL.Path == v1.AgentServiceJoinProcedure {
			// Whatever it says of its length.
			r.Body, bytes = http.MaxBytesReader(w, r.Body, joinBytes), joinBytes
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(joinFor)) // the server's own deadline stays in force
		} else {
			id, ok := pki.From(r.Context())
			if !ok || id.Role != pki.Agent {
				refuse("identity", connect.CodeUnauthenticated, "this needs an agent's certificate")
				return
			}
			who, most = id.ID, callsOfAgent
		}
		if bytes > messageBytes {
			refuse("size", connect.CodeResourceExhausted, "the message is too large")
			return
		}
		if !g.calls.enter(who, most, bytes) {
			refuse("busy", connect.CodeResourceExhausted, "too many calls are under way, try again later")
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

// bodyBytes returns how much memory a body may take. One that is compressed, or in
// parts of its own, may be longer than it says.
func bodyBytes(r *http.Request) int64 {
	if r.ContentLength < 0 || r.Header.Get("Content-Encoding") != "" || r.Header.Get("Content-Type") != "application/proto" {
		return messageBytes
	}
	return r.ContentLength
}

// readKey finds whether the body of a call was a message, in its context.
type readKey struct{}

func wasRead(ctx context.Context) {
	if read, ok := ctx.Value(readKey{}).(*bool); ok {
		*read = true
	}
}
