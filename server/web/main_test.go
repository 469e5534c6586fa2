package web

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/ledger"
	"loadstar/server/operator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// people is an Access in memory.
type people struct {
	mu       sync.Mutex
	sessions map[string]access.Caller
	codes    map[string]access.Caller
}

var errNobody = connect.NewError(connect.CodeUnauthenticated, errors.New("there is no such session"))

func (p *people) Login(_ context.Context, code string, now time.Time) (string, time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.codes[code]
	if !ok {
		return "", time.Time{}, errNobody
	}
	delete(p.codes, code)
	c.Expires = now.Add(12 * time.Hour)
	cookie := rand.Text()
	p.sessions[cookie] = c
	return cookie, c.Expires, nil
}

func (p *people) Session(_ context.Context, cookie string, _ time.Time) (access.Caller, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.sessions[cookie]; ok {
		return c, nil
	}
	return access.Caller{}, errNobody
}

func (p *people) Logout(_ context.Context, cookie string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, cookie)
	return nil
}

func (p *people) External(_ context.Context, _, name string, role access.Role, now time.Time) (string, time.Time, error) {
	return p.open(name, role), now.Add(time.Hour), nil
}

// open returns the cookie of a new session.
func (p *people) open(name string, role access.Role) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	cookie := rand.Text()
	p.sessions[cookie] = access.Caller{Name: name, Role: role, Via: access.ViaWeb, Expires: time.Now().Add(time.Hour)}
	return cookie
}

// fixture is a dashboard with the real operators' API and a real ledger.
type fixture struct {
	*testing.T
	*people
	web    *Web
	ledger *ledger.Ledger
	url    string
	http   *http.Client
	stop   func()
}

func newFixture(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	l := newLedger(t)
	c := Config{Listen: "127.0.0.1:0"}
	if change != nil {
		change(&c)
	}
	return serve(t, c, newAPI(t, l), l)
}

// newAPI returns the operators' API for a ledger.
func newAPI(t *testing.T, l *ledger.Ledger) API {
	return operator.New(operator.Config{
		Ledger: l, Wake: func(string) {}, Revoked: func(string) {}, Closing: t.Context().Done(), Log: slog.New(slog.DiscardHandler),
	})
}

func newLedger(t *testing.T) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// serve serves a dashboard until the test ends.
func serve(t *testing.T, c Config, api API, l *ledger.Ledger) *fixture {
	t.Helper()
	p := &people{sessions: map[string]access.Caller{}, codes: map[string]access.Caller{}}
	w, err := Open(c)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	w.start(ctx, Services{API: api, Access: p, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	go func() { done <- w.serve(ctx) }()
	f := &fixture{T: t, people: p, web: w, ledger: l, url: w.URL(), http: &http.Client{Transport: &http.Transport{}}}
	f.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	t.Cleanup(f.http.CloseIdleConnections)
	return f
}

// ask makes a request. The cookie may be empty.
func (f *fixture) ask(method, path, cookie, body string, header ...string) *http.Response {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), method, f.url+path, bytes.NewReader([]byte(body)))
	must(f, err)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if cookie != "" {
		r.AddCookie(&http.Cookie{Name: cookieName, Value: cookie})
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	a, err := f.http.Do(r)
	must(f, err)
	f.Cleanup(func() { a.Body.Close() })
	return a
}

// call makes a call of the operators' API and returns its status and body.
func (f *fixture) call(cookie, method, body string, header ...string) (int, string) {
	f.Helper()
	a := f.ask(http.MethodPost, "api/"+v1.OperatorServiceName+"/"+method, cookie, body, header...)
	text, err := io.ReadAll(a.Body)
	must(f, err)
	return a.StatusCode, string(text)
}

// problem decodes an error.
func (f *fixture) problem(a *http.Response) (code, message string) {
	f.Helper()
	var p struct{ Code, Message string }
	must(f, json.NewDecoder(a.Body).Decode(&p))
	return p.Code, p.Message
}
