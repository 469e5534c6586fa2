package web

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
)

// counting counts the reads of a real API, and can replace its fleet.
type counting struct {
	API
	reads atomic.Int64
	fleet atomic.Pointer[v1.GetFleetResponse]
}

func (c *counting) GetFleet(ctx context.Context, r *v1.GetFleetRequest) (*v1.GetFleetResponse, error) {
	c.reads.Add(1)
	if f := c.fleet.Load(); f != nil {
		return f, nil
	}
	return c.API.GetFleet(ctx, r)
}

func (c *counting) set(clients int64) { c.fleet.Store(&v1.GetFleetResponse{Clients: clients}) }

// event is one message of a stream.
type event struct{ name, id, data string }

// viewing is the browser's end of a stream. It has no goroutines and small buffers, because a
// test measures the memory of the server's end.
type viewing struct {
	*testing.T
	answer *http.Response
	lines  *bufio.Scanner
	conn   net.Conn
}

// look opens a stream of events.
func (f *fixture) look(cookie, topics, last string) *viewing {
	f.Helper()
	r, err := http.NewRequest(http.MethodGet, f.url+"api/events?topics="+topics, nil)
	testkit.Must(f, err)
	r.AddCookie(f.cookie(cookie))
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	v := &viewing{T: f.T}
	v.conn, err = net.Dial("tcp", f.web.listener.Addr().String())
	testkit.Must(f, err)
	f.Cleanup(v.close)
	testkit.Must(f, v.conn.SetDeadline(time.Now().Add(10*time.Minute)))
	testkit.Must(f, r.Write(v.conn))
	v.answer, err = http.ReadResponse(bufio.NewReaderSize(v.conn, 256), r)
	testkit.Must(f, err)
	v.lines = bufio.NewScanner(v.answer.Body)
	v.lines.Buffer(make([]byte, 0, 256), 1<<20)
	return v
}

func (v *viewing) close() { _ = v.conn.Close() } // closing it twice does no harm

// next returns the next event; ok is false at the end of the stream.
func (v *viewing) next() (e event, ok bool) {
	for v.lines.Scan() {
		name, text, _ := strings.Cut(v.lines.Text(), ": ")
		switch name {
		case "event":
			e.name = text
		case "id":
			e.id = text
		case "data":
			e.data = text
		case "":
			if e.name != "" {
				return e, true
			}
		}
	}
	return e, false
}

func (v *viewing) want(name, part string) event {
	v.Helper()
	e, ok := v.next()
	if !ok || e.name != name || !strings.Contains(e.data, part) {
		v.Fatalf("got %+v, want %s with %q", e, name, part)
	}
	return e
}

func (h *hub) size() (viewers, topics int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.viewers), len(h.topics)
}

// watched returns a dashboard whose API counts reads.
func watched(t *testing.T) (*fixture, *counting) {
	t.Helper()
	l := newLedger(t)
	c := &counting{API: newAPI(t, l)}
	c.set(1)
	return serve(t, Config{Listen: "127.0.0.1:0"}, c, l), c
}

// TestEvents checks that a viewer gets the state immediately and then each change, and that
// after an interruption it gets only what has changed since.
func TestEvents(t *testing.T) {
	if testing.Short() {
		t.Skip("reads topics at their real pace")
	}
	t.Parallel()
	f, api := watched(t)
	cookie := f.open("anna", access.Viewer)
	v := f.look(cookie, "fleet,runs", "")
	if v.answer.StatusCode != http.StatusOK || v.answer.Header.Get("Content-Type") != "text/event-stream" || v.answer.Header.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("%s %v", v.answer.Status, v.answer.Header)
	}
	first, ok1 := v.next()
	second, ok2 := v.next()
	if !ok1 || !ok2 || first.name == second.name || first.id == second.id {
		t.Fatalf("%+v, %+v", first, second)
	}
	api.set(2)
	last := v.want("fleet", `"2"`)
	// Another viewer keeps watching. Otherwise the topics might end and start again as new
	// ones.
	f.look(cookie, "fleet,runs", "")
	v.close()

	again := f.look(cookie, "fleet,runs", last.id)
	api.set(3)
	again.want("fleet", `"3"`) // not the runs, which have not changed
	again.close()
	// An id from another process is ignored.
	other := f.look(cookie, "runs", "other-999")
	other.want("runs", "{}")
	other.close()

	for _, topics := range []string{"run:none", "fleet,turns:none"} {
		if a := f.ask(http.MethodGet, "api/events?topics="+topics, cookie, ""); a.StatusCode != http.StatusNotFound {
			t.Errorf("topics %q: %s", topics, a.Status)
		}
	}
	for _, topics := range []string{"", "other", "run:", "run:../x", "run:a b", "fleet,", strings.Repeat("run:a,", 9) + "fleet,nothing", "run:" + strings.Repeat("x", 65)} {
		if a := f.ask(http.MethodGet, "api/events?topics="+strings.ReplaceAll(topics, " ", "%20"), cookie, ""); a.StatusCode != http.StatusBadRequest {
			t.Errorf("topics %q: %s", topics, a.Status)
		}
	}
	if a := f.ask(http.MethodGet, "api/events?topics=fleet", "", ""); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a session: %s", a.Status)
	}
}

// TestSessionEnds checks that a stream ends with its session: immediately after a logout, and
// soon if the session ends in another way.
func TestSessionEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the check of sessions")
	}
	t.Parallel()
	f, _ := watched(t)
	cookie, other := f.open("anna", access.Viewer), f.open("bert", access.Viewer)
	v, w := f.look(cookie, "fleet", ""), f.look(other, "fleet", "")
	v.want("fleet", `"1"`)
	w.want("fleet", `"1"`)
	f.ask(http.MethodPost, "api/logout", cookie, "")
	if e, ok := v.next(); ok {
		t.Errorf("after the logout: %+v", e)
	}
	if viewers, _ := f.web.hub.size(); viewers > 2 {
		t.Errorf("%d viewers", viewers)
	}
	testkit.Must(t, f.gate.Logout(t.Context(), other)) // another process may do this
	began := time.Now()
	if e, ok := w.next(); ok {
		t.Errorf("after the end of the session: %+v", e)
	}
	t.Logf("the stream ended after %s", time.Since(began).Round(time.Millisecond))
	testkit.Eventually(t, "no viewers", func() bool { n, _ := f.web.hub.size(); return n == 0 })
}

// TestOnePoller checks that one read of the ledger serves all viewers, and that the ledger is
// not read without viewers.
func TestOnePoller(t *testing.T) {
	if testing.Short() {
		t.Skip("reads topics at their real pace")
	}
	t.Parallel()
	f, api := watched(t)
	cookie := f.open("anna", access.Viewer)
	if api.reads.Load() != 0 {
		t.Error("the fleet is read before anybody looks")
	}
	var all []*viewing
	for range 20 {
		v := f.look(cookie, "fleet", "")
		v.want("fleet", `"1"`)
		all = append(all, v)
	}
	before, began := api.reads.Load(), time.Now()
	api.set(2)
	for _, v := range all {
		v.want("fleet", `"2"`)
	}
	// A read takes place every two seconds.
	if n, most := api.reads.Load()-before, 2+int64(time.Since(began)/rests["fleet"]); n > most {
		t.Errorf("%d reads for 20 viewers, want at most %d", n, most)
	}
	for _, v := range all {
		v.close()
	}
	testkit.Eventually(t, "no topic is read", func() bool { _, topics := f.web.hub.size(); return topics == 0 })
	n := api.reads.Load()
	time.Sleep(2*rests["fleet"] + time.Second)
	if api.reads.Load() != n {
		t.Error("the fleet is read although nobody looks")
	}
}

// TestViewers checks that the number of viewers is limited, per user and in total, and that a
// viewer uses little memory.
func TestViewers(t *testing.T) {
	if testing.Short() {
		t.Skip("opens hundreds of connections")
	}
	f, api := watched(t)
	cookies := map[int]string{} // one session for each user
	open := func(user int) *viewing {
		if cookies[user] == "" {
			cookies[user] = f.open(fmt.Sprint("user", user), access.Viewer)
		}
		return f.look(cookies[user], "fleet", "")
	}
	open(0).want("fleet", `"1"`)
	inUse := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	before := inUse()
	var all []*viewing
	for i := 1; i < maxViewers; i++ {
		v := open(i % (maxViewers / viewersOfUser))
		if v.answer.StatusCode != http.StatusOK {
			t.Fatalf("viewer %d: %s", i, v.answer.Status)
		}
		v.want("fleet", `"1"`)
		all = append(all, v)
	}
	m := inUse()
	each := (int64(m.HeapInuse+m.StackInuse) - int64(before.HeapInuse+before.StackInuse)) / int64(len(all))
	t.Logf("%d bytes for each viewer, including the test's side of the connection, which has small buffers", each)
	if each > 64<<10 && !raceDetector { // the race detector uses memory itself
		t.Errorf("a viewer takes %d bytes, want at most 64 KiB", each)
	}
	for _, user := range []int{0, 99} {
		if v := open(user); v.answer.StatusCode != http.StatusServiceUnavailable || v.answer.Header.Get("Retry-After") != "10" {
			t.Errorf("one viewer more: %s", v.answer.Status)
		}
	}
	api.set(2)
	for _, v := range all {
		v.want("fleet", `"2"`)
	}
	all[0].close()
	testkit.Eventually(t, "room for another", func() bool {
		v := open(99)
		defer v.close()
		return v.answer.StatusCode == http.StatusOK
	})
	mine := f.web.hub
	for i := 1; i <= 2*viewersOfUser; i++ { // all for one user
		all[min(i, len(all)-1)].close()
	}
	testkit.Eventually(t, "room", func() bool { n, _ := mine.size(); return n < maxViewers-viewersOfUser })
	mine.mu.Lock()
	mine.ofUser["greedy"] = viewersOfUser
	mine.mu.Unlock()
	if _, err := mine.join(t.Context(), "greedy", "", []string{"fleet"}); err == nil {
		t.Error("a user may have any number of streams")
	}
}

// everyRun is an API in which every run exists.
type everyRun struct{ API }

func (everyRun) GetRun(context.Context, *v1.GetRunRequest) (*v1.GetRunResponse, error) {
	return &v1.GetRunResponse{}, nil
}

// TestTopicsOfUser checks that one user cannot watch so many topics that none remain for
// others.
func TestTopicsOfUser(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	f := serve(t, Config{Listen: "127.0.0.1:0"}, everyRun{newAPI(t, l)}, l)
	greedy, other := f.open("greedy", access.Viewer), f.open("other", access.Viewer)
	refused := 0
	for i := range maxTopics {
		v := f.look(greedy, fmt.Sprint("run:r", i), "")
		if v.answer.StatusCode == http.StatusServiceUnavailable {
			refused++
		}
	}
	if want := maxTopics - topicsOfUser; refused != want {
		t.Errorf("%d of %d topics were refused, want %d", refused, maxTopics, want)
	}
	if v := f.look(greedy, "run:r0", ""); v.answer.StatusCode != http.StatusOK {
		t.Errorf("a topic that the user already looks at: %s", v.answer.Status)
	}
	if v := f.look(other, "fleet,runs,run:r99", ""); v.answer.StatusCode != http.StatusOK {
		t.Errorf("another user: %s", v.answer.Status)
	}
}
