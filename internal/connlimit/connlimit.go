// Package connlimit limits the connections to a listener, so that neither strangers nor a few
// known callers can take them all.
//
// A connection is anonymous until a request arrives that proves the identity of its sender with
// a certificate, a session or a token. Anonymous connections are limited by address and in
// total. If there are too many, the listener accepts a new connection and closes the older of
// two that are chosen at random. Connections that a peer holds open therefore make room for new
// ones. If connections arrive faster than the server can answer, some of them still succeed. If
// the oldest connection were always closed, all of them would fail.
//
// Known connections are limited by caller rather than by address, because many agents may share
// an address.
package connlimit

import (
	"cmp"
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// The kinds of callers.
const (
	Agent   = "agent"
	User    = "user"
	Address = "address"
)

// Caller is the agent, user or address to which limits apply.
type Caller struct{ Kind, Name string }

// The reasons why connections are limited.
const (
	ConnectionRate         = "connection rate"
	ConnectionsOfAddress   = "connections of address"
	ConnectionsOfStrangers = "connections of strangers"
	ConnectionsOfCaller    = "connections of caller"
	CallsOfStranger        = "calls of stranger"
)

// Config configures a limiter.
type Config struct {
	// Connections limits all connections. If this many known connections are open, further
	// connections wait until one is closed.
	Connections int
	// Anonymous limits the anonymous connections in total, and OfAddress limits those from one
	// address.
	Anonymous, OfAddress int
	// OfCaller limits the connections of one known caller, by the caller's kind.
	OfCaller map[string]int
	// Rate is the number of new connections that an address may open per second. 0 means
	// no limits by address, for servers behind a proxy, where all callers have the same
	// address.
	Rate float64
	// Who returns the sender of a request, if the request proves the sender's identity. Only
	// Handler calls it.
	Who func(*http.Request) (Caller, bool)
	// Limited is called when a limit was applied to a caller. It must not block.
	Limited func(reason string, who Caller)
}

// Limits on connections. A connection needs about 100 kB of memory while an agent sends
// (loadstar-lab bench fleet), and less before the caller is known.
const (
	// burstSeconds is the time for which an address may open connections in advance. After a
	// power failure, all agents behind an address connect at once.
	burstSeconds = 5
	maxAddresses = 1 << 16
	// anonymousCalls limits the concurrent calls on one anonymous HTTP/2 connection.
	anonymousCalls = 8
)

// Limiter limits the connections of one listener. It is safe for concurrent use.
type Limiter struct {
	Config
	rates *Rates

	mu        sync.Mutex
	free      *sync.Cond // signals that a connection was closed
	shut      bool
	open      int
	anonymous crowd
	groups    map[Caller]*crowd // anonymous connections by address, the others by caller
}

// New returns a limiter.
func New(c Config) *Limiter {
	l := &Limiter{Config: c, groups: map[Caller]*crowd{}}
	l.free = sync.NewCond(&l.mu)
	if c.Rate > 0 {
		l.rates = NewRates(c.Rate, int(burstSeconds*c.Rate)+1, maxAddresses)
	}
	return l
}

// Listener returns a listener whose connections are limited.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limiter *Limiter
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who := Caller{Address, AddressOf(c.RemoteAddr().String())}
		if l.limiter.rates != nil && !l.limiter.rates.Allow(who.Name) {
			l.limiter.Limited(ConnectionRate, who)
			abort(c)
			continue
		}
		k := &conn{Conn: c, limiter: l.limiter, group: who, address: who.Name, since: time.Now()}
		victims, ok := l.limiter.enter(k)
		for _, victim := range victims {
			abort(victim.Conn) // its handler notices this and closes the rest
		}
		if !ok {
			abort(c)
			return nil, net.ErrClosed
		}
		return k, nil
	}
}

func (l *listener) Close() error {
	l.limiter.mu.Lock()
	l.limiter.shut = true
	l.limiter.mu.Unlock()
	l.limiter.free.Broadcast()
	return l.Listener.Close()
}

// abort closes a connection without waiting for the peer. Otherwise, the kernel would keep the
// connection's state for a minute.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only if the connection is already closed
	}
	_ = c.Close() // nothing was written that could be lost
}

// enter registers a new connection and returns the connections that must be closed to make room
// for it. If all connections are known, it waits until one is closed, or returns false if the
// listener is closed.
func (l *Limiter) enter(k *conn) (victims []*conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.Connections && len(l.anonymous.all) == 0 && !l.shut {
		l.free.Wait()
	}
	if l.shut {
		return nil, false
	}
	l.open++
	l.anonymous.add(k, &k.place)
	l.join(k)
	if g := l.groups[k.group]; l.Rate > 0 && len(g.all) > l.OfAddress {
		victims = append(victims, l.evict(l.give(g, k), ConnectionsOfAddress))
	}
	if len(l.anonymous.all) > l.Anonymous || l.open > l.Connections {
		victims = append(victims, l.evict(l.give(&l.anonymous, k), ConnectionsOfStrangers))
	}
	return victims, true
}

// join adds a connection to its group.
func (l *Limiter) join(k *conn) {
	g := l.groups[k.group]
	if g == nil {
		g = &crowd{}
		l.groups[k.group] = g
	}
	g.add(k, &k.groupPlace)
}

// evict unregisters a connection that is about to be closed.
func (l *Limiter) evict(k *conn, reason string) *conn {
	l.Limited(reason, k.group)
	l.remove(k)
	return k
}

func (l *Limiter) remove(k *conn) {
	if k.gone {
		return
	}
	k.gone = true
	l.open--
	if !k.known {
		l.anonymous.remove(k.place, func(c *conn) *int { return &c.place })
	}
	l.leave(k)
	l.free.Signal()
}

// leave removes a connection from its group.
func (l *Limiter) leave(k *conn) {
	g := l.groups[k.group]
	if g.remove(k.groupPlace, func(c *conn) *int { return &c.groupPlace }); len(g.all) == 0 {
		delete(l.groups, k.group)
	}
}

// know registers the caller of a connection. It returns a connection of the same caller that
// must be closed because the caller has too many connections, or nil.
func (l *Limiter) know(k *conn, who Caller) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.known || k.gone {
		return nil
	}
	l.anonymous.remove(k.place, func(c *conn) *int { return &c.place })
	l.leave(k)
	k.known, k.group = true, who
	l.join(k)
	if g := l.groups[k.group]; len(g.all) > l.OfCaller[who.Kind] && len(g.all) > 1 {
		return l.evict(l.give(g, k), ConnectionsOfCaller)
	}
	return nil
}

// Know registers the sender of a request, so its connection is limited by caller from now
// on. A connection keeps its first caller.
func (l *Limiter) Know(r *http.Request, who Caller) {
	if k, ok := r.Context().Value(connKey{}).(*conn); ok {
		if victim := l.know(k, who); victim != nil {
			abort(victim.Conn)
		}
	}
}

// conn is a limited connection.
type conn struct {
	net.Conn
	limiter *Limiter
	address string
	since   time.Time

	// The limiter's mutex guards the following fields.
	known, gone       bool
	group             Caller
	place, groupPlace int
	calls             int // number of concurrent calls while the connection is anonymous
}

func (k *conn) Close() error {
	k.limiter.mu.Lock()
	k.limiter.remove(k)
	k.limiter.mu.Unlock()
	return k.Conn.Close()
}

// crowd is a set of connections. Each connection stores its index in the set.
type crowd struct{ all []*conn }

func (c *crowd) add(k *conn, place *int) {
	*place = len(c.all)
	c.all = append(c.all, k)
}

func (c *crowd) remove(at int, place func(*conn) *int) {
	last := len(c.all) - 1
	c.all[at] = c.all[last]
	*place(c.all[at]) = at
	c.all[last] = nil
	c.all = c.all[:last]
}

// give returns the connection of a crowd that must make room for the newest one. It chooses two
// at random and returns the one whose address has more connections or, if the numbers are
// equal, the older one. The crowd must contain at least one connection besides newest.
func (l *Limiter) give(c *crowd, newest *conn) (victim *conn) {
	for range 2 {
		k := c.all[rand.IntN(len(c.all))]
		if k == newest {
			continue
		}
		if victim == nil || cmp.Or(cmp.Compare(l.size(k), l.size(victim)), victim.since.Compare(k.since)) > 0 {
			victim = k
		}
	}
	if victim == nil {
		victim = c.all[0]
		if victim == newest {
			victim = c.all[1]
		}
	}
	return victim
}

func (l *Limiter) size(k *conn) int { return len(l.groups[k.group].all) }

type connKey struct{}

// Context is the ConnContext of an HTTP server that uses the limiter's listener.
func (l *Limiter) Context(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if k, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, k)
	}
	return ctx
}

// Handler registers the sender of each request, and closes an anonymous connection after its
// call.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, ok := r.Context().Value(connKey{}).(*conn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if who, ok := l.Who(r); ok {
			l.Know(r, who)
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		if !l.begin(k) {
			l.Limited(CallsOfStranger, Caller{Address, k.address})
			http.Error(w, "too many concurrent calls of an unknown caller", http.StatusTooManyRequests)
			return
		}
		defer l.end(k)
		next.ServeHTTP(w, r)
	})
}

func (l *Limiter) begin(k *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.calls >= anonymousCalls {
		return false
	}
	k.calls++
	return true
}

func (l *Limiter) end(k *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.calls--
}

// AddressOf returns the address to which limits apply, without the port. For IPv6, this is the
// first half of the address, because the owner of a network can choose the other half.
func AddressOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return "unknown"
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}
