package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// TestDatabaseFailsDuringStart checks that a starting server waits for a database that fails in
// the meantime, at whatever point the connection breaks.
func TestDatabaseFailsDuringStart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	var left atomic.Int64 // requests until a connection breaks
	at, dir := breaking(t, pgtest.Single(t).Addr(), &left), t.TempDir()
	// start returns the number of requests that the server has made until it was ready.
	start := func(cut int64) (made int64, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		left.Store(cut)
		err = Run(ctx, Config{
			Dir: dir, Database: "postgres://postgres@" + at + "/postgres?sslmode=disable", Roles: Roles(), Listen: "127.0.0.1:0", Hosts: []string{"127.0.0.1"},
			AgentClients: 100, Certificates: time.Hour, Lease: time.Minute, Lead: time.Minute, Poll: time.Second, MaxPoll: time.Second, Rate: 1000,
			Log: slog.New(slog.DiscardHandler), Ready: func(string) { made = cut - left.Load(); cancel() },
		})
		if err == nil && made == 0 {
			err = errors.New("it was not ready within a minute")
		}
		return made, err
	}
	_, err := start(1 << 30) // creates the folder
	testkit.Must(t, err)
	requests, err := start(1 << 30)
	testkit.Must(t, err)
	if requests < 10 {
		t.Fatalf("a start makes %d requests", requests)
	}
	for cut := int64(1); cut <= requests; cut += max(requests/10, 1) {
		if _, err := start(cut); err != nil {
			t.Fatalf("the connection broke at request %d of %d: %v", cut, requests, err)
		}
	}
}

// breaking forwards connections to a database. It breaks the connection with the last of the
// remaining requests.
func breaking(t *testing.T, to string, left *atomic.Int64) (at string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	pass := func(from, to net.Conn, may func() bool) {
		defer from.Close()
		defer to.Close()
		for b := make([]byte, 64<<10); ; {
			n, err := from.Read(b)
			if err != nil || !may() {
				return
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			go pass(c, s, func() bool { return left.Add(-1) != 0 })
			go pass(s, c, func() bool { return true })
		}
	}()
	return l.Addr().String()
}
