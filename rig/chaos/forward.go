package main

import (
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// forwarder is a minimal load balancer, which forwards each connection to a server that
// accepts it. It can also simulate a bad link.
type forwarder struct {
	listener net.Listener
	to       []string

	mu    sync.Mutex
	line  line
	away  bool // refuses new connections
	open  map[*carried]bool
	count int // connections that were cut or became dead
}

// line is the speed of a link. The zero value has no limits.
type line struct {
	rate          int // bytes per second and direction of a connection
	delay, jitter time.Duration
}

// direction is the direction of data on a connection. Requests go up and answers go down.
type direction int

const (
	up direction = iota
	down
)

// carried is a connection that is being forwarded.
type carried struct {
	ends [2]net.Conn // the client's and the server's
	mu   sync.Mutex
	dead [2]bool // by direction: the data is discarded, but the connection stays open
	left [2]int  // by direction: bytes until the connection is cut, or -1
}

// forward starts a forwarder that listens on an address.
func forward(address string, to ...string) (*forwarder, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	f := &forwarder{listener: l, to: to, open: map[*carried]bool{}}
	go f.accept()
	return f, nil
}

func (f *forwarder) Close() error { return f.listener.Close() }

func (f *forwarder) accept() {
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return
		}
		go f.carry(c)
	}
}

// set changes the speed of the link.
func (f *forwarder) set(l line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line = l
}

// leave ends all connections and refuses new ones until it is called with false.
func (f *forwarder) leave(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
	for c := range f.open {
		if away {
			c.reset()
		}
	}
}

// each calls do for every open connection.
func (f *forwarder) each(do func(*carried)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.open {
		c.mu.Lock()
		do(c)
		c.mu.Unlock()
		f.count++
	}
}

// kill makes one direction of all open connections permanently dead. New connections are not
// affected.
func (f *forwarder) kill(d direction) { f.each(func(c *carried) { c.dead[d] = true }) }

// cut cuts all open connections after a random number of further bytes in a direction, which is
// less than most.
func (f *forwarder) cut(d direction, most int) {
	f.each(func(c *carried) { c.left[d] = rand.IntN(most) })
}

// cuts returns the number of connections that were cut or became dead.
func (f *forwarder) cuts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *forwarder) now() line {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.line
}

// carry copies data in both directions until one side closes the connection.
func (f *forwarder) carry(c net.Conn) {
	defer c.Close()
	for _, i := range rand.Perm(len(f.to)) {
		g, err := net.DialTimeout("tcp", f.to[i], time.Second)
		if err != nil {
			continue
		}
		defer g.Close()
		x := &carried{ends: [2]net.Conn{c, g}, left: [2]int{-1, -1}}
		f.mu.Lock()
		if f.away {
			f.mu.Unlock()
			return
		}
		f.open[x] = true
		f.mu.Unlock()
		var wg sync.WaitGroup
		for _, d := range []direction{up, down} {
			wg.Go(func() { f.copy(x, d) })
		}
		wg.Wait()
		f.mu.Lock()
		delete(f.open, x)
		f.mu.Unlock()
		return
	}
}

// copy copies the data of one direction.
func (f *forwarder) copy(c *carried, d direction) {
	from, to := c.ends[d], c.ends[1-d]
	defer func() {
		from.Close()
		if !c.silent() { // the other end of a dead connection must not see it end
			to.Close()
		}
	}()
	b := make([]byte, 64<<10)
	for {
		l := f.now()
		if l.rate > 0 {
			b = b[:max(min(l.rate/20, cap(b)), 1)]
		}
		n, err := from.Read(b)
		if l.delay > 0 {
			time.Sleep(l.delay + time.Duration(rand.Int64N(int64(l.jitter)+1)))
		}
		if l.rate > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(l.rate))
		}
		dead, part := c.take(d, n)
		if !dead {
			if _, err := to.Write(b[:part]); err != nil {
				return
			}
		}
		if part < n {
			c.reset()
			return
		}
		if err != nil {
			return
		}
	}
}

// take reports whether n bytes in a direction are discarded, or how many of them pass
// before the connection is cut.
func (c *carried) take(d direction, n int) (dead bool, part int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left[d] >= 0 {
		if c.left[d] < n {
			return c.dead[d], c.left[d]
		}
		c.left[d] -= n
	}
	return c.dead[d], n
}

func (c *carried) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead[up] || c.dead[down]
}

// reset ends both connections with a reset instead of an orderly end.
func (c *carried) reset() {
	for _, x := range c.ends {
		if t, ok := x.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // without this the connection ends in an orderly way
		}
		x.Close()
	}
}
