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
	"testing"
	"time"
)

func TestProtocols(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })) //nolint:errcheck // the client sees
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

// A connection on which nothing moves fails; one on which little does, does not.
func TestMoving(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	m := moving{near, 200 * time.Millisecond, 200 * time.Millisecond}
	go func() {
		for range 6 {
			time.Sleep(50 * time.Millisecond)
			far.Write([]byte("x")) //nolint:errcheck // the reader sees
		}
		io.ReadFull(far, make([]byte, 3)) //nolint:errcheck // the writer sees
	}()
	b := make([]byte, 1)
	for range 6 {
		if _, err := m.Read(b); err != nil {
			t.Fatalf("a slow link: %v", err)
		}
	}
	if _, err := m.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a silent link: %v", err)
	}
	if n, err := m.Write([]byte("four")); n != 3 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a link that takes no more: %d bytes, %v", n, err)
	}
}

// A request that takes longer to send than an answer may pause is not given up, on a new
// connection and on one that was idle.
func TestSlowUpload(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	}))
	defer s.Close()
	tr := AgentTransport(nil)
	tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		return moving{c, 400 * time.Millisecond, 400 * time.Millisecond}, err
	}
	defer tr.CloseIdleConnections()
	for range 2 {
		body, write := io.Pipe()
		go func() {
			for range 20 {
				time.Sleep(50 * time.Millisecond)
				write.Write([]byte("x")) //nolint:errcheck // the server counts
			}
			write.Close()
		}()
		r, err := Client(tr).Post(s.URL, "", body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || string(got) != "20 <nil>" {
			t.Errorf("%s, %v", got, err)
		}
		time.Sleep(300 * time.Millisecond)
	}
}

// BenchmarkTransports is of both ends of calls with 23 KB, over 1,000 connections in turn.
func BenchmarkTransports(b *testing.B) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the client sees
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
				io.Copy(io.Discard, r.Body) //nolint:errcheck // it is empty
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
