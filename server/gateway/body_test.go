package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/connlimit"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
)

// bare returns a gateway that can only count arriving bytes.
func bare() *Gateway {
	return &Gateway{
		Config: Config{Report: access.NewLimitReport(slog.New(slog.DiscardHandler), prometheus.NewRegistry())},
		calls:  calls{by: map[connlimit.Caller]*inProgress{}},
	}
}

// sender is a body that a test sends in pieces. It has a read deadline, like a connection.
type sender struct {
	http.ResponseWriter // a recorder, which has no SetReadDeadline
	more                chan int

	mu    sync.Mutex
	until time.Time
	moved chan struct{} // closed when until changes
}

func newSender() *sender {
	return &sender{ResponseWriter: httptest.NewRecorder(), more: make(chan int), moved: make(chan struct{})}
}

func (s *sender) SetReadDeadline(at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = at
	close(s.moved)
	s.moved = make(chan struct{})
	return nil
}

func (s *sender) Read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		until, moved := s.until, s.moved
		s.mu.Unlock()
		var expired <-chan time.Time
		if !until.IsZero() {
			expired = time.After(time.Until(until))
		}
		select {
		case n, ok := <-s.more:
			if !ok {
				return 0, io.EOF
			}
			return min(n, len(p)), nil
		case <-moved:
		case <-expired:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (s *sender) Close() error { return nil }

// open starts receiving a body. The channel ended receives the outcome.
func open(g *Gateway, agent string, header ...string) (s *sender, ended chan error) {
	s, ended = newSender(), make(chan error, 1)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Body = s
	r.Header.Set("Content-Type", "application/proto")
	r.Header.Set(protocol.Header, strconv.Itoa(protocol.Version))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	who := connlimit.Caller{Kind: connlimit.Agent, Name: agent}
	if !g.calls.enter(who, callsOfAgent) {
		ended <- errors.New("too many calls")
		return s, ended
	}
	b := g.receive(s, r, who, messageBytes)
	go func() {
		var err error
		for p := make([]byte, 1<<20); err == nil; {
			_, err = r.Body.Read(p)
		}
		b.done()
		g.calls.leave(who)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		ended <- err
	}()
	return s, ended
}

func (s *sender) send(bytes int) {
	for ; bytes > 0; bytes -= min(bytes, 64<<10) {
		s.more <- min(bytes, 64<<10)
	}
}

// held waits until nothing more happens, and returns the bytes that count towards bytesOfAll.
// callersOf waits in the same way and returns the number of callers.
func held(g *Gateway) int64 {
	synctest.Wait()
	g.calls.mu.Lock()
	defer g.calls.mu.Unlock()
	return g.calls.bytes
}

func callersOf(g *Gateway) int {
	synctest.Wait()
	g.calls.mu.Lock()
	defer g.calls.mu.Unlock()
	return len(g.calls.by)
}

func outcome(ended chan error) string {
	synctest.Wait()
	select {
	case err := <-ended:
		if err == nil {
			return "received"
		}
		return connect.CodeOf(err).String()
	default:
		return "open"
	}
}

// TestTrickle checks that callers that announce large bodies and send almost nothing use almost
// no memory, and are cut off. It fails if a body is charged according to its declared length.
func TestTrickle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := bare()
		var all []chan error
		for i := range 64 {
			s, ended := open(g, fmt.Sprint("slow", i), "Content-Length", fmt.Sprint(messageBytes))
			s.send(1)
			all = append(all, ended)
		}
		if held(g) != 0 {
			t.Errorf("%d bytes are charged", held(g))
		}
		s, ended := open(g, "honest")
		s.send(messageBytes)
		close(s.more)
		if got := outcome(ended); got != "received" {
			t.Errorf("an honest message: %s", got)
		}
		time.Sleep(slowest + time.Second)
		for i, ended := range all {
			if got := outcome(ended); got != "deadline_exceeded" {
				t.Fatalf("slow message %d: %s", i, got)
			}
		}
		if callersOf(g) != 0 || held(g) != 0 {
			t.Errorf("%d callers, %d bytes", callersOf(g), held(g))
		}
	})
}

func TestLeastRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := bare()
		run := func(bytes int, every time.Duration) (took time.Duration, got string) {
			s, ended := open(g, "a")
			start := time.Now()
			for sent := 0; sent < messageBytes; sent += bytes {
				synctest.Wait()
				select {
				case err := <-ended:
					return time.Since(start), connect.CodeOf(err).String()
				case s.more <- bytes:
				}
				time.Sleep(every)
			}
			close(s.more)
			return time.Since(start), outcome(ended)
		}
		if took, got := run(1, 2*time.Second); got != "deadline_exceeded" || took > slowest+3*time.Second {
			t.Errorf("a byte in two seconds: %s after %v", got, took)
		}
		if took, got := run(32<<10, 2*time.Second); got != "received" {
			t.Errorf("16 kB a second: %s after %v", got, took)
		}
		// Pauses are allowed.
		if took, got := run(512<<10, slowest-time.Second); got != "received" {
			t.Errorf("with pauses: %s after %v", got, took)
		}
		if took, got := run(1500, time.Second); got != "deadline_exceeded" || took > bodyFor+3*time.Second {
			t.Errorf("for more than ten minutes: %s after %v", got, took)
		}
	})
}

// TestMemory checks that the caller with the most bytes is cut off if the memory is used up,
// and that small messages are always received.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := bare()
		var hold []*sender
		var all []chan error
		greedy := func(i int) {
			for range 2 {
				s, ended := open(g, fmt.Sprint("greedy", i))
				s.send(messageBytes - 1)
				hold, all = append(hold, s), append(all, ended)
			}
		}
		for i := range bytesOfAll / bytesOfAgent {
			greedy(i)
		}
		synctest.Wait()
		if held(g) < bytesOfAll-(1<<20) {
			t.Fatalf("%d bytes are held", held(g))
		}
		honest := func(bytes int) {
			t.Helper()
			s, ended := open(g, "honest")
			s.send(bytes)
			close(s.more)
			if got := outcome(ended); got != "received" {
				t.Errorf("an honest message of %d bytes: %s", bytes, got)
			}
		}
		cut := func() (n int) {
			synctest.Wait()
			for _, ended := range all {
				n += len(ended)
			}
			return n
		}
		honest(smallBody)
		if n := cut(); n != 0 {
			t.Errorf("a small message cut off %d", n)
		}
		honest(4 << 20)
		if n := cut(); n != 1 {
			t.Errorf("a message of 4 MB cut off %d, want 1", n)
		}
		// Further messages of an agent are refused while both of its messages are in progress.
		whole := 0
		for len(all[2*whole])+len(all[2*whole+1]) > 0 {
			whole++
		}
		s, ended := open(g, fmt.Sprint("greedy", whole))
		s.more <- 2
		s.more <- 32 << 10
		if got := outcome(ended); got != "resource_exhausted" {
			t.Errorf("a third message of an agent: %s", got)
		}
		for _, s := range hold {
			close(s.more)
		}
		synctest.Wait()
		if callersOf(g) != 0 || held(g) != 0 {
			t.Errorf("%d callers, %d bytes", callersOf(g), held(g))
		}
	})
}

// TestExpands checks that once a compressed message is complete, it is charged for the size to
// which it may expand.
func TestExpands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := bare()
		for _, header := range [][]string{{"Content-Encoding", "gzip"}, {"Content-Type", "application/json"}, {"Content-Type", "application/grpc"}} {
			s, ended := open(g, "a", header...)
			s.send(100)
			synctest.Wait()
			want := int64(0)
			if strings.Contains(header[1], "grpc") {
				want = shared(messageBytes)
			}
			if held(g) != want {
				t.Errorf("%v: %d bytes after the first, want %d", header, held(g), want)
			}
			close(s.more)
			if got := outcome(ended); got != "received" {
				t.Errorf("%v: %s", header, got)
			}
		}
		b := &body{calls: &g.calls, who: connlimit.Caller{Kind: connlimit.Agent, Name: "b"}, expands: true, most: messageBytes}
		g.calls.enter(b.who, 1)
		must(t, b.charge(100, true))
		if held(g) != shared(messageBytes+100) {
			t.Errorf("%d bytes", held(g))
		}
	})
}

func TestCallsOfAgent(t *testing.T) {
	c := calls{by: map[connlimit.Caller]*inProgress{}}
	who := connlimit.Caller{Kind: connlimit.Agent, Name: "one"}
	for i := range callsOfAgent + 1 {
		if c.enter(who, callsOfAgent) != (i < callsOfAgent) {
			t.Errorf("call %d", i)
		}
	}
	for range callsOfAgent {
		c.leave(who)
	}
	if len(c.by) != 0 {
		t.Errorf("%d callers", len(c.by))
	}
}

// TestFair checks that an agent that calls too often is refused, and that other agents are not.
func TestFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(Pace{Poll: time.Second}, true, bare().Report)
		bytes := int64(0)
		times := func(procedure, who string, tries int) (n int) {
			for range tries {
				if f.allow(procedure, bytes, connlimit.Caller{Name: who}) {
					n++
				}
			}
			return n
		}
		for procedure, c := range map[string]struct{ burst, later int }{
			v1.AgentServiceAnnounceProcedure: {rareBurst, 20},
			v1.AgentServiceRenewProcedure:    {rareBurst, 20},
			v1.AgentServiceExchangeProcedure: {100, 100},
		} {
			if a, b := times(procedure, "a", 10_000), times(procedure, "b", 10_000); a != c.burst || b != c.burst {
				t.Errorf("%s: %d and %d at once, want %d", procedure, a, b, c.burst)
			}
			time.Sleep(time.Minute)
			if n := times(procedure, "a", 10_000); n != c.later {
				t.Errorf("%s: %d after a minute, want %d", procedure, n, c.later)
			}
		}
		// Results do not count towards the rate of other calls.
		bytes = smallMessage + 1
		if n := times(v1.AgentServiceExchangeProcedure, "a", 10_000); n != resultsPerSecond*burstSeconds {
			t.Errorf("%d results at once", n)
		}
		// Agents that are asked to check in often are not limited.
		if n := newFair(Pace{Poll: 20 * time.Millisecond}, true, bare().Report).rates[v1.AgentServiceExchangeProcedure]; !n.Allow("a") || n.Spent("a") {
			t.Error("a check-in is refused")
		}
	})
}

// TestLanes checks that an agent's check-ins are served one at a time.
func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFair(Pace{Poll: time.Second}, true, bare().Report)
		leave, err := f.enter(t.Context(), "a")
		must(t, err)
		other, err := f.enter(t.Context(), "b")
		must(t, err)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.enter(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("two at a time: %v", err)
		}
		next := make(chan func())
		go func() {
			leave, err := f.enter(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			next <- leave
		}()
		synctest.Wait()
		leave()
		(<-next)()
		other()
		if len(f.lanes) != 0 {
			t.Errorf("%d lanes are left", len(f.lanes))
		}
	})
}
