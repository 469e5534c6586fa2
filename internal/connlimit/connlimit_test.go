package connlimit

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"loadstar/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// named takes an agent's name from a header.
func named(r *http.Request) (Caller, bool) {
	name := r.Header.Get("Agent")
	return Caller{Agent, name}, name != ""
}

// pipes is a listener for connections from addresses that the test chooses.
type pipes struct {
	arrive chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.arrive:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

type from struct {
	net.Conn
	remote string
}

func (f from) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", f.remote)
	if err != nil {
		panic(err)
	}
	return a
}

// room is a listener with the connections that it has accepted.
type room struct {
	*testing.T
	*Limiter
	pipes    *pipes
	l        net.Listener
	accepted chan net.Conn
	all      []net.Conn
	limited  map[string]int // by reason and name; only Accept and know write to it
}

func newRoom(t *testing.T, c Config) *room {
	limited := map[string]int{}
	c.Limited = func(reason string, who Caller) { limited[reason+" "+who.Name]++ }
	r := &room{T: t, limited: limited, Limiter: New(c), pipes: &pipes{make(chan net.Conn), make(chan struct{})}, accepted: make(chan net.Conn, 1)}
	r.l = r.Listener(r.pipes)
	go func() {
		for {
			c, err := r.l.Accept()
			if err != nil {
				return
			}
			r.accepted <- c
		}
	}()
	return r
}

func (r *room) end() {
	testkit.Must(r.T, r.l.Close())
	for _, c := range r.all {
		c.Close()
	}
	if r.Limiter.open != 0 || len(r.anonymous.all) != 0 || len(r.groups) != 0 {
		r.Errorf("%d connections are counted after all were closed, %d anonymous, %d groups", r.Limiter.open, len(r.anonymous.all), len(r.groups))
	}
}

// connect opens a connection and returns the caller's end, and the server's end if it was
// accepted.
func (r *room) connect(remote string) (client net.Conn, server *conn) {
	r.Helper()
	client, in := net.Pipe()
	r.all = append(r.all, client)
	r.pipes.arrive <- from{in, remote}
	synctest.Wait()
	select {
	case c := <-r.accepted:
		r.all = append(r.all, c)
		return client, c.(*conn)
	default:
		return client, nil
	}
}

// alive reports whether a connection has not been closed by the peer.
func alive(c net.Conn) bool {
	if c.SetReadDeadline(time.Now().Add(time.Millisecond)) != nil {
		return false
	}
	_, err := c.Read(make([]byte, 1))
	return err != io.EOF && err != io.ErrClosedPipe
}

// Strangers who hold connections open do not block others, because an old connection makes room
// for a new one. The test fails if new connections wait or are refused while strangers hold too
// many.
func TestStrangersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, Config{Connections: 1000, Anonymous: 100, OfAddress: 10, OfCaller: map[string]int{Agent: 2, User: 2}, Rate: 1000})
		defer r.end()
		hold := func(remote string, n int) (open func() int) {
			var all []net.Conn
			for range n {
				c, k := r.connect(remote)
				if k == nil {
					t.Fatalf("a connection of %s is refused", remote)
				}
				all = append(all, c)
				time.Sleep(time.Millisecond)
			}
			return func() (n int) {
				for _, c := range all {
					if alive(c) {
						n++
					}
				}
				return n
			}
		}
		one := hold("192.0.2.1:1", 50)
		if n := one(); n != 10 {
			t.Errorf("one address has %d connections, want 10", n)
		}
		// The limits treat all addresses of an IPv6 network as one.
		net64 := hold("[2001:db8::1]:1", 9)
		more := hold("[2001:db8::ffff:2]:1", 9)
		if n := net64() + more(); n != 10 {
			t.Errorf("one network has %d connections, want 10", n)
		}
		// Among many addresses, the one with the most connections loses connections, not a
		// newcomer.
		for i := range 200 {
			hold(fmt.Sprintf("198.51.100.%d:1", i), 1)
		}
		if n := len(r.anonymous.all); n != 100 {
			t.Errorf("%d strangers, want 100", n)
		}
		// The connections to close are chosen at random. Of the 20 old ones, about 2 remain, and
		// rarely as many as 7.
		if n := one() + net64() + more(); n > 10 {
			t.Errorf("two addresses still have %d connections of the 100", n)
		}
		late := hold("203.0.113.7:1", 1)
		if late() != 1 {
			t.Error("a newcomer is refused")
		}
	})
}

// Connections with a certificate are limited by agent, and strangers cannot cause them to be
// closed.
func TestKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, Config{Connections: 20, Anonymous: 5, OfAddress: 4, OfCaller: map[string]int{Agent: 2, User: 3}, Rate: 1000})
		defer r.end()
		know := func(remote string, who Caller) net.Conn {
			c, k := r.connect(remote)
			if victim := r.know(k, who); victim != nil {
				abort(victim.Conn)
			}
			if r.know(k, who) != nil {
				t.Error("a connection was registered twice")
			}
			time.Sleep(time.Millisecond)
			return c
		}
		var agents []net.Conn
		for i := range 10 {
			agents = append(agents, know("192.0.2.1:1", Caller{Agent, fmt.Sprint("a", i)}))
		}
		for range 3 {
			know("192.0.2.1:1", Caller{User, "anna"})
		}
		for range 30 {
			r.connect("192.0.2.1:1")
			r.connect("192.0.2.2:1")
		}
		for i, c := range agents {
			if !alive(c) {
				t.Errorf("agent %d of the same address was cut off", i)
			}
		}
		if n := len(r.anonymous.all); n > 5 || r.Limiter.open > 20 {
			t.Errorf("%d strangers, %d in all", n, r.Limiter.open)
		}
		second, third := know("192.0.2.3:1", Caller{Agent, "a0"}), know("192.0.2.3:1", Caller{Agent, "a0"})
		n := 0
		for _, c := range []net.Conn{agents[0], second, third} {
			if alive(c) {
				n++
			}
		}
		if n != 2 || !alive(third) || !alive(agents[1]) {
			t.Errorf("an agent has %d connections, want 2, among them the newest", n)
		}
	})
}

// If all connections have certificates, the next one waits, and is served when one closes.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, Config{Connections: 2, Anonymous: 1, OfAddress: 1, OfCaller: map[string]int{Agent: 1, User: 1}, Rate: 1000})
		defer r.end()
		var first net.Conn
		for i := range 2 {
			_, k := r.connect("192.0.2.1:1")
			r.know(k, Caller{Agent, fmt.Sprint(i)})
			first = k
		}
		if _, k := r.connect("192.0.2.1:1"); k != nil {
			t.Fatal("one too many")
		}
		testkit.Must(t, first.Close())
		testkit.Must(t, first.Close()) // must be counted once
		r.all = append(r.all, <-r.accepted)
		if r.Limiter.open != 2 {
			t.Errorf("%d are open", r.Limiter.open)
		}
	})
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, Config{Connections: 1000, Anonymous: 100, OfAddress: 100, OfCaller: map[string]int{Agent: 2, User: 2}, Rate: 4})
		defer r.end()
		tries := func(remote string) (n int) {
			for range 50 {
				if _, k := r.connect(remote); k != nil {
					n++
				}
			}
			return n
		}
		if n := tries("192.0.2.1:1"); n != 21 {
			t.Errorf("%d connections at once, want five seconds' worth and one", n)
		}
		if n := tries("192.0.2.2:1"); n != 21 {
			t.Errorf("%d connections of another address", n)
		}
		time.Sleep(time.Second)
		if n := tries("192.0.2.1:1"); n != 4 {
			t.Errorf("%d connections after a second, want 4", n)
		}
		if n := r.limited[ConnectionRate+" 192.0.2.1"]; n != 29+46 {
			t.Errorf("%d connections were reported as limited: %v", n, r.limited)
		}
	})
}

// A connection without a certificate is closed after its call, and permits only a few
// concurrent calls.
func TestAnonymousCall(t *testing.T) {
	d := New(Config{Connections: 100, Anonymous: 100, OfAddress: 100, OfCaller: map[string]int{Agent: 10, User: 10}, Rate: 1000, Limited: func(string, Caller) {}, Who: named})
	block := make(chan struct{})
	var inside sync.WaitGroup
	h := d.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			inside.Done()
			<-block
		}
	}))
	s := httptest.NewUnstartedServer(h)
	s.Listener = d.Listener(s.Listener)
	s.Config.ConnContext = d.Context
	s.Start()
	defer s.Close()
	r, err := s.Client().Get(s.URL)
	testkit.Must(t, err)
	r.Body.Close()
	if !r.Close {
		t.Error("the connection stays open")
	}
	k := &conn{limiter: d}
	ctx := context.WithValue(t.Context(), connKey{}, k)
	call := func(path, agent string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		r.Header.Set("Agent", agent)
		h.ServeHTTP(w, r)
		return w
	}
	var wg sync.WaitGroup
	for range anonymousCalls {
		inside.Add(1)
		wg.Go(func() { call("/slow", "") })
	}
	inside.Wait()
	if w := call("/", ""); w.Code != http.StatusTooManyRequests || w.Header().Get("Connection") != "close" {
		t.Errorf("one too many: %d", w.Code)
	}
	close(block)
	wg.Wait()
	if w := call("/", ""); w.Code != http.StatusOK {
		t.Errorf("after the calls: %d", w.Code)
	}
	k.known = true
	if w := call("/", "a"); w.Header().Get("Connection") != "" {
		t.Error("an agent's connection is closed")
	}
}

func TestAddressOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:443": "192.0.2.1", "[::ffff:192.0.2.1]:443": "192.0.2.1", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64", "[fe80::1%eth0]:1": "fe80::/64", "": "unknown", "@": "unknown",
	} {
		if got := AddressOf(remote); got != want {
			t.Errorf("%q: %q, want %q", remote, got, want)
		}
	}
}
