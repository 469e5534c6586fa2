package fleetload

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/internal/protocol"
)

// line is an agent's HTTP/1.1 connection. Calls run one after the other in the caller's
// goroutine. net/http is not used, because it needs two more goroutines per connection and
// as much CPU time as the server under test. Only one goroutine at a time may use a line.
type line struct {
	server *url.URL
	config *tls.Config
	from   net.Addr      // nil if the system chooses
	bytes  *atomic.Int64 // number of bytes that connections have transferred
	conn   *tls.Conn     // nil while there is no connection
}

// source returns the address from which an agent calls a server on this machine. An address
// has 28,000 ports, each of which stays in use for a minute after its connection is closed.
func source(server *url.URL, agent int) net.Addr {
	if ip := net.ParseIP(server.Hostname()); runtime.GOOS != "linux" || ip == nil || !ip.IsLoopback() || ip.To4() == nil {
		return nil
	}
	const addresses = 250
	return &net.TCPAddr{IP: net.IPv4(127, 77, 0, byte(1+agent%addresses))}
}

// countedConn counts the bytes of a connection.
type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

// busyError means that the server is overloaded and the call may be retried.
type busyError string

func (e busyError) Error() string { return "the server is busy: " + string(e) }

var (
	readers  = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 16<<10) }}
	requests = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// call calls a procedure of the agent service.
func (l *line) call(ctx context.Context, procedure string, in, out proto.Message) error {
	b := requests.Get().(*bytes.Buffer)
	defer requests.Put(b)
	b.Reset()
	l.begin(b, http.MethodPost, procedure)
	size := proto.Size(in)
	fmt.Fprintf(b, "%s: %d\r\n%s: %s\r\n", protocol.Header, protocol.Version, protocol.Padding, protocol.Pad(size))
	b.WriteString("Content-Type: application/proto\r\nConnect-Protocol-Version: 1\r\nContent-Length: ")
	b.WriteString(strconv.Itoa(size))
	b.WriteString("\r\n\r\n")
	whole, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b.AvailableBuffer(), in)
	if err != nil {
		return err
	}
	b.Write(whole)
	var said error // an error that the server sent; the connection stays usable
	err = l.exchange(ctx, b.Bytes(), func(code int, body io.Reader) error {
		text, err := io.ReadAll(limited(body))
		switch {
		case err != nil:
			return err
		case code == http.StatusTooManyRequests:
			said = busyError(text)
		case code != http.StatusOK:
			said = fmt.Errorf("the server returned %d: %.200s", code, text)
		default:
			return proto.Unmarshal(text, out)
		}
		return nil
	})
	return errors.Join(err, said)
}

// get sends a GET request and passes the response to take.
func (l *line) get(ctx context.Context, path string, take func(code int, body io.Reader) error) error {
	b := requests.Get().(*bytes.Buffer)
	defer requests.Put(b)
	b.Reset()
	l.begin(b, http.MethodGet, path)
	b.WriteString("\r\n")
	return l.exchange(ctx, b.Bytes(), take)
}

func (l *line) begin(b *bytes.Buffer, method, path string) {
	b.WriteString(method)
	b.WriteByte(' ')
	b.WriteString(path)
	b.WriteString(" HTTP/1.1\r\nHost: ")
	b.WriteString(l.server.Host)
	b.WriteString("\r\nUser-Agent: loadstar-bench\r\n")
}

// exchange sends a request and passes the response to take. It reconnects if the server
// has closed the connection.
func (l *line) exchange(ctx context.Context, request []byte, take func(code int, body io.Reader) error) error {
	had := l.conn != nil
	answered, err := l.try(ctx, request, take)
	if had && err != nil && !answered && ctx.Err() == nil {
		_, err = l.try(ctx, request, take)
	}
	return err
}

// try makes one attempt to send the request and read the response. It reports whether a
// response began; if so, the request must not be repeated.
func (l *line) try(ctx context.Context, request []byte, take func(code int, body io.Reader) error) (answered bool, err error) {
	if l.conn == nil {
		d := net.Dialer{LocalAddr: l.from}
		c, err := d.DialContext(ctx, "tcp", l.server.Host)
		if err != nil {
			return false, err
		}
		t := tls.Client(countedConn{c, l.bytes}, l.config)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = c.Close() // the connection has failed
			return false, err
		}
		l.conn = t
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	conn := l.conn
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // the call is cancelled anyway
	if _, err := conn.Write(request); err != nil {
		return false, err
	}
	r := readers.Get().(*bufio.Reader)
	defer readers.Put(r)
	r.Reset(conn)
	if _, err := r.Peek(1); err != nil {
		return false, err
	}
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return true, err
	}
	if err = take(answer.StatusCode, answer.Body); err != nil {
		return true, err
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return true, err
	}
	if answer.Close {
		l.close()
	}
	return true, nil
}

func (l *line) close() {
	if l.conn != nil {
		_ = l.conn.Close() // calls on the connection have returned
		l.conn = nil
	}
}
