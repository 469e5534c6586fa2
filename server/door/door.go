// Package door limits the connections to a server, so that neither strangers nor a few
// agents can take them all.
//
// A connection is anonymous until a request arrives that presents a certificate. Anonymous
// connections are limited by address and in total, and are closed after one call. If there
// are too many, a new one is accepted and an earlier one is closed: the older of two that
// are chosen at random. Connections that somebody holds open therefore make room for new
// ones. If connections arrive faster than the server can answer, some still succeed, which
// would not be so if the oldest one was always closed.
//
// Connections with a certificate are limited by agent or user, not by address, because many
// agents may share an address.
package door

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

	"loadstar/server/pki"
)

// Config configures a door.
type Config struct {
	// Connections limits all connections. If all of them have certificates, further ones
	// wait until one is closed.
	Connections int
	// Anonymous limits the connections without a certificate. OfAddress limits those of one
	// address, and OfAgent and OfUser limit the connections of one agent or user.
	Anonymous, OfAddress, OfAgent, OfUser int
	// Rate is the number of new connections that an address may open per second. If it is
	// 0, there are no limits by address: behind a proxy, all callers have the same one.
	Rate   float64
	Report *Report
}

// Limits on connections. A connection needs about 100 kB of memory while an agent sends
// (loadstar bench fleet), and less before the caller is known.
const (
	// burstSeconds is the time for which an address may open connections in advance. After a
	// power failure, all agents behind an address connect at once.
	burstSeconds = 5
	maxAddresses = 1 << 16
	// anonymousCalls limits the concurrent calls on one anonymous HTTP/2 connection.
	anonymousCalls = 8
)

// Door limits the connections of one listener. It is safe for concurrent use.
type Door struct {
	Config
	rates *Rates

	mu        sync.Mutex
	free      *sync.Cond // signals that a connection was closed
	shut      bool
	open      int
	anonymous crowd
	groups    map[Caller]*crowd // anonymous connections by address, the others by caller
}

// New returns a door.
func New(c Config) *Door {
	d := &Door{Config: c, groups: map[Caller]*crowd{}}
	d.free = sync.NewCond(&d.mu)
	if c.Rate > 0 {
		d.rates = NewRates(c.Rate, int(burstSeconds*c.Rate)+1, maxAddresses)
	}
	return d
}

// Listener returns a listener whose connections are limited.
func (d *Door) Listener(l net.Listener) net.Listener { return &listener{l, d} }

type listener struct {
	net.Listener
	door *Door
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who := Caller{Address, AddressOf(c.RemoteAddr().String())}
		if l.door.rates != nil && !l.door.rates.Allow(who.Name) {
			l.door.Report.Limited(ConnectionRate, who)
			abort(c)
			continue
		}
		k := &conn{Conn: c, door: l.door, group: who, address: who.Name, since: time.Now()}
		victims, ok := l.door.enter(k)
		for _, victim := range victims {
			abort(victim.Conn) // its handler notices, and closes the rest
		}
		if !ok {
			abort(c)
			return nil, net.ErrClosed
		}
		return k, nil
	}
}

func (l *listener) Close() error {
	l.door.mu.Lock()
	l.door.shut = true
	l.door.mu.Unlock()
	l.door.free.Broadcast()
	return l.Listener.Close()
}

// abort closes a connection without waiting for the peer, so that the kernel does not keep
// its state for a minute.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only if the connection is closed already
	}
	_ = c.Close() // nothing was written that could be lost
}

// enter registers a new connection and returns those that must be closed for it. If all
// connections have certificates, it waits until one is closed, or returns false if the
// listener is closed.
func (d *Door) enter(k *conn) (victims []*conn, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.open >= d.Connections && len(d.anonymous.all) == 0 && !d.shut {
		d.free.Wait()
	}
	if d.shut {
		return nil, false
	}
	d.open++
	d.anonymous.add(k, &k.place)
	d.join(k)
	if g := d.groups[k.group]; d.Rate > 0 && len(g.all) > d.OfAddress {
		victims = append(victims, d.evict(d.give(g, k), ConnectionsOfAddress))
	}
	if len(d.anonymous.all) > d.Anonymous || d.open > d.Connections {
		victims = append(victims, d.evict(d.give(&d.anonymous, k), ConnectionsOfStrangers))
	}
	return victims, true
}

// join adds a connection to its group.
func (d *Door) join(k *conn) {
	g := d.groups[k.group]
	if g == nil {
		g = &crowd{}
		d.groups[k.group] = g
	}
	g.add(k, &k.groupPlace)
}

// evict unregisters a connection that is about to be closed.
func (d *Door) evict(k *conn, reason string) *conn {
	d.Report.Limited(reason, k.group)
	d.remove(k)
	return k
}

func (d *Door) remove(k *conn) {
	if k.gone {
		return
	}
	k.gone = true
	d.open--
	if !k.known {
		d.anonymous.remove(k.place, func(c *conn) *int { return &c.place })
	}
	d.leave(k)
	d.free.Signal()
}

// leave removes a connection from its group.
func (d *Door) leave(k *conn) {
	g := d.groups[k.group]
	if g.remove(k.groupPlace, func(c *conn) *int { return &c.groupPlace }); len(g.all) == 0 {
		delete(d.groups, k.group)
	}
}

// know registers whose connection it is. It returns a connection of the same caller that
// must be closed because the caller has too many, or nil.
func (d *Door) know(k *conn, who pki.Identity) *conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k.known || k.gone {
		return nil
	}
	d.anonymous.remove(k.place, func(c *conn) *int { return &c.place })
	d.leave(k)
	most := d.OfAgent
	k.known, k.group = true, Caller{Agent, who.ID}
	if who.Role == pki.Operator {
		most, k.group.Kind = d.OfUser, User
	}
	d.join(k)
	if g := d.groups[k.group]; len(g.all) > most {
		return d.evict(d.give(g, k), ConnectionsOfCaller)
	}
	return nil
}

// conn is a connection through a door.
type conn struct {
	net.Conn
	door    *Door
	address string
	since   time.Time

	// The door's mutex guards what follows.
	known, gone       bool
	group             Caller
	place, groupPlace int
	calls             int // concurrent, while it is anonymous
}

func (k *conn) Close() error {
	k.door.mu.Lock()
	k.door.remove(k)
	k.door.mu.Unlock()
	return k.Conn.Close()
}

// crowd is a set of connections. Each of them stores its index.
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

// give returns the connection of a crowd that must make room for the newest one. It chooses
// two at random and returns the one whose address has more connections, or the older one. The
// crowd must have another connection.
func (d *Door) give(c *crowd, newest *conn) (victim *conn) {
	for range 2 {
		k := c.all[rand.IntN(len(c.all))]
		if k == newest {
			continue
		}
		if victim == nil || cmp.Or(cmp.Compare(d.size(k), d.size(victim)), victim.since.Compare(k.since)) > 0 {
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

func (d *Door) size(k *conn) int { return len(d.groups[k.group].all) }

type connKey struct{}

// Context is the ConnContext of an HTTP server that uses the door's listener.
func (d *Door) Context(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if k, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, k)
	}
	return ctx
}

// Handler registers who makes a call, and closes anonymous connections after their call.
// pki.Authority.Middleware must have put the caller's identity into the context of each request.
func (d *Door) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, ok := r.Context().Value(connKey{}).(*conn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if who, ok := pki.From(r.Context()); ok {
			if victim := d.know(k, who); victim != nil {
				abort(victim.Conn)
			}
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		if !d.begin(k) {
			d.Report.Limited(CallsOfStranger, Caller{Address, k.address})
			http.Error(w, "too many concurrent calls without a certificate", http.StatusTooManyRequests)
			return
		}
		defer d.end(k)
		next.ServeHTTP(w, r)
	})
}

func (d *Door) begin(k *conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k.calls >= anonymousCalls {
		return false
	}
	k.calls++
	return true
}

func (d *Door) end(k *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k.calls--
}

// AddressOf returns the address to which limits apply, without the port. It is the first
// half of an IPv6 address, because the owner of a network can choose the other half.
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
