package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/connlimit"
	"loadstar/server/access"
)

// Limits on bodies. A body is read completely before it is decoded, so these limits bound the
// memory. Bytes count when they arrive, not when a header announces them, so a caller occupies
// no more memory than it has sent.
const (
	bytesOfAgent = 2 * messageBytes
	// bytesOfAll limits the memory of all bodies together. The first smallBody bytes of each
	// body do not count. Most check-ins are smaller, so they are served even if other bodies
	// have used up the limit.
	bytesOfAll = 256 << 20
	smallBody  = 16 << 10
	// A body must arrive at leastRate on average over slowest, and completely within
	// bodyFor.
	leastRate = 1 << 10 // bytes per second
	slowest   = 20 * time.Second
	bodyFor   = 10 * time.Minute
)

var (
	errBytes = connect.NewError(connect.CodeResourceExhausted, errors.New("the server has no memory for this message now; try again later"))
	errSize  = connect.NewError(connect.CodeResourceExhausted, errors.New("the message is too large"))
	errSlow  = connect.NewError(connect.CodeDeadlineExceeded, errors.New("the message arrived too slowly: a link must carry at least 1 kB per second"))
)

// calls counts the calls in progress and the memory of their bodies.
type calls struct {
	mu    sync.Mutex
	bytes int64 // bytes of all bodies, except the first smallBody bytes of each
	by    map[connlimit.Caller]*inProgress
}

// inProgress holds a caller's calls in progress.
type inProgress struct {
	calls    int
	bytes    int64
	arriving []*body
}

// arrived records that a body is complete, or is not needed.
func (p *inProgress) arrived(b *body) {
	p.arriving = slices.DeleteFunc(p.arriving, func(one *body) bool { return one == b })
}

// enter registers a call, and reports whether the limit allows it.
func (c *calls) enter(who connlimit.Caller, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.by[who]
	if p == nil {
		p = &inProgress{}
		c.by[who] = p
	}
	if p.calls >= most {
		return false
	}
	p.calls++
	return true
}

// leave ends a call. Its body, if any, must have been released.
func (c *calls) leave(who connlimit.Caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.by[who]
	if p.calls--; p.calls == 0 {
		delete(c.by, who)
	}
}

// shared returns how many bytes of a body count towards bytesOfAll.
func shared(bytes int64) int64 { return max(0, bytes-smallBody) }

// charge counts bytes of a body that have arrived. If no memory is left, it cuts off messages
// from the caller with the most bytes.
func (c *calls) charge(b *body, bytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.by[b.who]
	if b.cut || p.bytes+bytes > bytesOfAgent {
		return errBytes
	}
	more := shared(b.bytes+bytes) - shared(b.bytes)
	for more > 0 && c.bytes+more > bytesOfAll {
		victim := c.largest()
		if victim == nil || victim.who == b.who {
			return errBytes
		}
		victim.cut = true
		c.release(victim)
		victim.expire(time.Unix(1, 0)) // wakes its reader
	}
	b.bytes += bytes
	p.bytes += bytes
	c.bytes += more
	return nil
}

// largest returns the largest arriving body of the caller with the most bytes.
func (c *calls) largest() (b *body) {
	var holder *inProgress
	for _, p := range c.by {
		if len(p.arriving) > 0 && (holder == nil || p.bytes > holder.bytes) {
			holder = p
		}
	}
	if holder == nil {
		return nil
	}
	for _, one := range holder.arriving {
		if b == nil || one.bytes > b.bytes {
			b = one
		}
	}
	return b
}

// release stops counting the bytes of a body.
func (c *calls) release(b *body) {
	p := c.by[b.who]
	p.arrived(b)
	p.bytes -= b.bytes
	c.bytes -= shared(b.bytes)
	b.bytes = 0
}

// body is the body of a request. It charges its caller for the bytes that arrive, and fails
// if they arrive too slowly.
type body struct {
	io.ReadCloser
	calls *calls
	who   connlimit.Caller
	begun time.Time
	most  int64
	// expands is set if the decoded message may be larger than the body. The caller is then
	// charged for the largest message as soon as decoding can begin: when the body is
	// complete, or at its first byte if the protocol has frames.
	expands, framed bool
	control         *http.ResponseController
	report          *access.LimitReport

	total, recently int64 // bytes read, and those since the deadline was last extended
	decoded         bool

	// The mutex of calls protects these fields.
	bytes int64 // charged
	cut   bool
}

// receive replaces a request's body with a limited one. The caller must have entered.
// Call done of the body when the call has ended.
func (g *Gateway) receive(w http.ResponseWriter, r *http.Request, who connlimit.Caller, most int64) (b *body) {
	kind := r.Header.Get("Content-Type")
	b = &body{
		ReadCloser: r.Body, calls: &g.calls, who: who, begun: time.Now(), most: most,
		expands: compressed(r.Header) || kind != "application/proto", framed: strings.HasPrefix(kind, "application/grpc"),
		control: http.NewResponseController(w), report: g.Report,
	}
	b.calls.mu.Lock()
	p := b.calls.by[who]
	p.arriving = append(p.arriving, b)
	b.calls.mu.Unlock()
	b.extend(b.begun)
	r.Body = b
	return b
}

// done releases what a body occupies.
func (b *body) done() {
	b.calls.mu.Lock()
	defer b.calls.mu.Unlock()
	b.calls.release(b)
}

// expire sets the deadline for reading. If this fails, the server's own deadline still applies.
func (b *body) expire(at time.Time) { _ = b.control.SetReadDeadline(at) }

// extend sets the time by which the next bytes must have arrived.
func (b *body) extend(now time.Time) {
	b.recently = 0
	at := now.Add(slowest)
	if end := b.begun.Add(bodyFor); end.Before(at) {
		at = end
	}
	b.expire(at)
}

func (b *body) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	first := b.total == 0
	b.total += int64(n)
	b.recently += int64(n)
	if b.total > b.most {
		return 0, errSize
	}
	if charged := b.charge(int64(n), n > 0 && first && b.framed || errors.Is(err, io.EOF)); charged != nil {
		b.report.Limited(access.LimitedBytes, b.who)
		return 0, charged
	}
	switch {
	case errors.Is(err, io.EOF):
		b.calls.mu.Lock()
		b.calls.by[b.who].arrived(b)
		b.calls.mu.Unlock()
		b.expire(time.Time{}) // otherwise the call would be cancelled during its service
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.report.Limited(access.LimitedSlowMessage, b.who)
		return 0, errSlow
	case b.recently >= leastRate*int64(slowest/time.Second):
		b.extend(time.Now())
	}
	return n, err
}

// charge charges the caller for bytes that have arrived. If the message can be decoded
// now, it also charges for the expanded size.
func (b *body) charge(bytes int64, decodable bool) error {
	if decodable && b.expands {
		b.expands = false
		bytes += max(0, b.most-b.total)
	}
	return b.calls.charge(b, bytes)
}

type bodyKey struct{}

// wasRead marks the body of a call as decoded.
func wasRead(ctx context.Context) {
	if b, ok := ctx.Value(bodyKey{}).(*body); ok {
		b.decoded = true
	}
}
