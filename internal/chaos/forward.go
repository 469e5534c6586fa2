package main

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// forwarder is a minimal load balancer: it forwards each connection to a gateway that
// accepts it.
type forwarder struct {
	listener net.Listener
	to       []string
}

// forward starts a forwarder that listens on an address.
func forward(address string, to ...string) (*forwarder, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	f := &forwarder{l, to}
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

// carry copies data in both directions until one side closes the connection.
func (f *forwarder) carry(c net.Conn) {
	defer c.Close()
	for _, i := range rand.Perm(len(f.to)) {
		g, err := net.DialTimeout("tcp", f.to[i], time.Second)
		if err != nil {
			continue
		}
		defer g.Close()
		var wg sync.WaitGroup
		for _, ends := range [][2]net.Conn{{c, g}, {g, c}} {
			wg.Go(func() {
				_, _ = io.Copy(ends[0], ends[1]) // either end may close at any time
				ends[0].Close()
				ends[1].Close()
			})
		}
		wg.Wait()
		return
	}
}
