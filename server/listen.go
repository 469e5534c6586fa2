package server

import (
	"net"
	"sync"
)

// maxConnections bounds what connections take of the memory: about 64 kB each.
const maxConnections = 16 << 10

// bounded is a listener of which so many connections are open at a time. Others wait
// until one is closed, which is soon for those that say nothing.
type bounded struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	close  func() error
}

func newBounded(l net.Listener, most int) *bounded {
	b := &bounded{Listener: l, room: make(chan struct{}, most), closed: make(chan struct{})}
	b.close = sync.OnceValue(func() error {
		close(b.closed)
		return l.Close()
	})
	return b
}

func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.room <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.room
		return nil, err
	}
	return &boundedConn{c, sync.OnceFunc(func() { <-b.room })}, nil
}

func (b *bounded) Close() error { return b.close() }

type boundedConn struct {
	net.Conn
	leave func()
}

func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
