package server

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/agent/identity"
	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
)

// half sends the first bytes of a body of the given length, as many as sent says, and leaves the
// request incomplete until letGo is called, which aborts it.
func (st *station) half(h *http.Client, procedure string, length, sent int64) (answer chan int, letGo func()) {
	st.Helper()
	r, w := io.Pipe()
	q, err := http.NewRequestWithContext(st.Context(), http.MethodPost, st.url+procedure, r)
	testkit.Must(st, err)
	q.ContentLength = length
	q.Header.Set("Content-Type", "application/proto")
	q.Header.Set(protocol.Header, strconv.Itoa(protocol.Version))
	answer = make(chan int, 1)
	go func() {
		s, err := h.Do(q)
		if err != nil {
			answer <- 0
			return
		}
		defer s.Body.Close()
		answer <- s.StatusCode
	}()
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		w.Write(make([]byte, sent)) // fails if the server refuses the call
	}()
	select {
	case <-begun:
	case code := <-answer:
		answer <- code
	case <-time.After(patient):
		st.Error("no call was admitted")
	}
	return answer, sync.OnceFunc(func() { w.CloseWithError(errors.New("released")) })
}

func code(answer chan int) int {
	select {
	case c := <-answer:
		answer <- c
		return c
	default:
		return -1 // no response yet
	}
}

// TestHalfOpen checks that incomplete requests use a limited amount of memory, however many
// there are, and do not block other agents.
func TestHalfOpen(t *testing.T) {
	st := newStation(t, nil)
	a, b := st.join("a0"), st.join("b0")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	var free []func()
	defer func() {
		for _, f := range free {
			f()
		}
	}()
	begin := func(h *http.Client, procedure string, length, sent int64, times int) (all []chan int) {
		for range times {
			answer, letGo := st.half(h, procedure, length, sent)
			all, free = append(all, answer), append(free, letGo)
		}
		return all
	}
	const tooMany = http.StatusTooManyRequests
	refused := func(all []chan int) (n int) {
		for _, answer := range all {
			if code(answer) == tooMany {
				n++
			}
		}
		return n
	}
	// The server limits the size of each body, and also the number of bytes that have arrived
	// from an agent. The length in a header does not count.
	all := begin(a.http, v1.AgentServiceExchangeProcedure, 8<<20, 1, 4)
	if n := refused(all); n > 0 {
		t.Errorf("%d bodies are refused that have not arrived", n)
	}
	for _, f := range free {
		f()
	}
	free = nil
	all = begin(a.http, v1.AgentServiceExchangeProcedure, 5<<20, 5<<20-1, 4)
	// Two messages that reach the limit at the same time may both be refused.
	testkit.Eventually(st, "the last of four are refused", func() bool { return refused(all) > 0 })
	if n := refused(all); n > 2 {
		t.Errorf("%d of four are refused", n)
	}
	for _, f := range free {
		f()
	}
	free = nil
	testkit.Eventually(st, "the cancelled calls have ended", func() bool { _, err := a.Exchange(t.Context(), &v1.ExchangeRequest{}); return err == nil })
	all = begin(a.http, v1.AgentServiceExchangeProcedure, 1<<20, 512<<10, 20)
	testkit.Eventually(st, "all but eight are refused", func() bool { return refused(all) == 12 })
	_, err := a.Exchange(t.Context(), &v1.ExchangeRequest{})
	st.wantCode("another call", err, connect.CodeResourceExhausted)
	if r, err := a.http.Get(st.url + "/v1/blobs/" + strings.Repeat("0", 64)); err != nil || r.StatusCode != tooMany {
		t.Error(r, err)
	}
	// Callers without a certificate may declare any length, and may use many connections.
	// They do not prevent others from joining.
	for range 4 {
		begin(st.nobody(), v1.AgentServiceJoinProcedure, 1<<30, 8<<10, 30)
	}
	_, err = identity.Join(t.Context(), t.TempDir(), st.url, st.token(1), "newcomer")
	testkit.Must(t, err)
	runtime.GC()
	runtime.GC() // the second collection empties pools
	runtime.ReadMemStats(&after)
	// The limit covers the memory of both client and server.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 96<<20 {
		t.Errorf("%d MB are in use", grown>>20)
	} else {
		t.Logf("%d MB are in use", grown>>20)
	}
	if _, err := b.Exchange(t.Context(), &v1.ExchangeRequest{}); err != nil {
		t.Errorf("another agent: %v", err)
	}
	if n := st.refused()["busy"]; n < 12+2 {
		t.Errorf("%g calls were refused as too many", n)
	}
	for _, f := range free {
		f()
	}
	testkit.Eventually(st, "all calls are admitted again", func() bool {
		_, err := a.Exchange(t.Context(), &v1.ExchangeRequest{})
		return err == nil
	})
	st.join("c0")
}

// TestSlowloris checks that a connection that sends nothing, or sends slowly, is closed after
// ten seconds.
func TestSlowloris(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for ten seconds")
	}
	t.Parallel()
	st := newStation(t, nil)
	at := strings.TrimPrefix(st.url, "https://")
	operator, err := mtls.ReadFolder(st.Dir + "/operator")
	testkit.Must(t, err)
	secure := func(c net.Conn, protocols ...string) net.Conn {
		s := tls.Client(c, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: mtls.Pool(operator.Root), ServerName: "127.0.0.1", NextProtos: protocols})
		testkit.Must(t, s.Handshake())
		return s
	}
	var wg sync.WaitGroup
	for name, begin := range map[string]func(c net.Conn) net.Conn{
		"silent":      func(c net.Conn) net.Conn { return c },
		"no request":  func(c net.Conn) net.Conn { return secure(c, "http/1.1") },
		"no HTTP/2":   func(c net.Conn) net.Conn { return secure(c, "h2") },
		"half a line": func(c net.Conn) net.Conn { c = secure(c, "http/1.1"); io.WriteString(c, "POST /loadst"); return c },
	} {
		wg.Go(func() {
			c, err := net.Dial("tcp", at)
			testkit.Must(t, err)
			defer c.Close()
			s := begin(c)
			// This is shorter than one minute, after which the server closes any idle
			// connection.
			testkit.Must(t, s.SetReadDeadline(time.Now().Add(50*time.Second)))
			if _, err := io.Copy(io.Discard, s); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection is still open", name)
			}
		})
	}
	wg.Wait()
}
