package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/ledger"
	"loadstar/server/operator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// raceDetector is set if the race detector is running.
var raceDetector bool

// fixture is a dashboard with the real operators' API, real sessions and a real ledger.
type fixture struct {
	*testing.T
	web    *Web
	ledger *ledger.Ledger
	gate   *access.Gate
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

var silent = slog.New(slog.DiscardHandler)

// newAPI returns the operators' API for a ledger.
func newAPI(t *testing.T, l *ledger.Ledger) API {
	return operator.New(operator.Config{
		Ledger: l, Access: access.New(l.Users, silent), Wake: func(string) {}, Revoked: func(string) {}, Closing: t.Context().Done(), Log: silent,
	})
}

func newLedger(t *testing.T) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	testkit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// serve serves a dashboard until the test ends.
func serve(t *testing.T, c Config, api API, l *ledger.Ledger) *fixture {
	t.Helper()
	gate := access.New(l.Users, silent)
	w, err := Open(c)
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	registry := prometheus.NewRegistry()
	w.start(ctx, Services{API: api, Access: gate, Log: silent, Limited: access.NewLimitReport(silent, registry)})
	go func() { done <- w.serve(ctx) }()
	f := &fixture{T: t, web: w, ledger: l, gate: gate, url: w.URL(), http: &http.Client{Transport: &http.Transport{}}}
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

// code adds a user, and returns the code of a login link.
func (f *fixture) code(name string, role access.Role) string {
	f.Helper()
	_, err := f.ledger.Users.PutUser(f.Context(), name, string(role), "test", time.Now())
	testkit.Must(f, err)
	code, _, err := f.gate.CreateLogin(f.Context(), name, time.Minute, "test", time.Now())
	testkit.Must(f, err)
	return code
}

// open returns the cookie of a new session.
func (f *fixture) open(name string, role access.Role) string {
	f.Helper()
	cookie, _, err := f.gate.Login(f.Context(), f.code(name, role), time.Now())
	testkit.Must(f, err)
	return cookie
}

// cookie returns the cookie as a browser sends it.
func (f *fixture) cookie(value string) *http.Cookie {
	return &http.Cookie{Name: f.web.cookieName(sessionCookie), Value: value}
}

// ask sends a request. The cookie may be empty.
func (f *fixture) ask(method, path, cookie, body string, header ...string) *http.Response {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), method, f.url+path, bytes.NewReader([]byte(body)))
	testkit.Must(f, err)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if cookie != "" {
		r.AddCookie(f.cookie(cookie))
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	a, err := f.http.Do(r)
	testkit.Must(f, err)
	f.Cleanup(func() { a.Body.Close() })
	return a
}

// call makes a call of the operators' API and returns its status and body.
func (f *fixture) call(cookie, method, body string, header ...string) (int, string) {
	f.Helper()
	a := f.ask(http.MethodPost, "api/"+v1.OperatorServiceName+"/"+method, cookie, body, header...)
	text, err := io.ReadAll(a.Body)
	testkit.Must(f, err)
	return a.StatusCode, string(text)
}

// problem decodes an error.
func (f *fixture) problem(a *http.Response) (code, message string) {
	f.Helper()
	var p struct{ Code, Message string }
	testkit.Must(f, json.NewDecoder(a.Body).Decode(&p))
	return p.Code, p.Message
}
