package mtls

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestProtocols(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })) // the client reports errors
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	for want, transport := range map[string]func(*tls.Config) *http.Transport{"HTTP/2.0": Transport, "HTTP/1.1": AgentTransport} {
		tr := transport(&tls.Config{RootCAs: Pool(s.Certificate())})
		r, err := Client(tr).Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		tr.CloseIdleConnections()
		if err != nil || string(got) != want {
			t.Errorf("%s, %v: want %s", got, err, want)
		}
	}
}

// TestDeadlineConn checks that a connection without traffic fails, and that a slow connection
// does not.
func TestDeadlineConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		m := deadlineConn{near, silentFor, stalledFor}
		go func() {
			for range 6 {
				time.Sleep(silentFor - 1)
				far.Write([]byte("x")) // the reader reports errors
			}
			io.ReadFull(far, make([]byte, 3)) // the writer reports errors
		}()
		b := make([]byte, 1)
		for range 6 {
			if _, err := m.Read(b); err != nil {
				t.Fatalf("a slow link: %v", err)
			}
		}
		begin := time.Now()
		if _, err := m.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != silentFor {
			t.Errorf("read without data: %v after %v", err, time.Since(begin))
		}
		begin = time.Now()
		if n, err := m.Write([]byte("four")); n != 3 || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != stalledFor {
			t.Errorf("write without progress: %d bytes, %v after %v", n, err, time.Since(begin))
		}
	})
}

// pipes is a listener for connections within the process. Tests with virtual time require such
// connections.
type pipes struct {
	made   chan net.Conn
	closed chan struct{}
	close  func()
	dialed atomic.Int64
}

func newPipes() *pipes {
	p := &pipes{made: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.made <- far:
		p.dialed.Add(1)
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.close(); return nil }

func (*pipes) Addr() net.Addr { return &net.IPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// TestSlowUpload checks that sending a request may take longer than the maximum pause of a
// response, on a new connection and on an idle one.
func TestSlowUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n, err)
		})}
		defer s.Close()
		go s.Serve(l) // the client reports errors
		tr := AgentTransport(nil)
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := l.dial(ctx)
			return deadlineConn{c, silentFor, stalledFor}, err
		}
		defer tr.CloseIdleConnections()
		for range 2 {
			body, write := io.Pipe()
			go func() {
				for range 20 {
					time.Sleep(stalledFor)
					write.Write([]byte("x")) // the server counts
				}
				write.Close()
			}()
			r, err := Client(tr).Post("http://127.0.0.1", "", body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || string(got) != "20 <nil>" {
				t.Errorf("%s, %v", got, err)
			}
			time.Sleep(tr.IdleConnTimeout - time.Second)
		}
		if n := l.dialed.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}

// BenchmarkTransports measures the cost of calls with 23 kB, for client and server together. It
// uses 1,000 connections one after the other.
func BenchmarkTransports(b *testing.B) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // the client reports errors
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	body := make([]byte, 23_040)
	for name, transport := range map[string]func(*tls.Config) *http.Transport{"http2": Transport, "http1": AgentTransport} {
		b.Run(name, func(b *testing.B) {
			clients := make([]*http.Client, 1000)
			call := func(i int) {
				r, err := clients[i%len(clients)].Post(s.URL, "", bytes.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, r.Body) // the body is empty
				r.Body.Close()
			}
			for i := range clients {
				clients[i] = Client(transport(&tls.Config{RootCAs: Pool(s.Certificate())}))
				defer clients[i].CloseIdleConnections()
				call(i)
			}
			i := 0
			for b.Loop() {
				call(i)
				i++
			}
		})
	}
}
