package doctor

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/finding"
)

// want checks that there is exactly one finding of a check, with the given level and text.
func want(t *testing.T, all finding.List, check string, level finding.Level, text string) {
	t.Helper()
	n := 0
	for _, f := range all {
		if f.Check != check {
			continue
		}
		n++
		if f.Level != level || !strings.Contains(f.Text, text) {
			t.Errorf("%s: %s %q, want %s %q", check, f.Level, f.Text, level, text)
		}
		if f.Level != finding.OK && f.Do == "" {
			t.Errorf("%s: nothing is said about what to do", check)
		}
	}
	if n != 1 {
		t.Errorf("%d findings of %s: %v", n, check, all)
	}
}

func TestMachine(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	all := Run(t.Context(), Config{Dir: dir, Operator: filepath.Join(dir, "none"), Ports: []Port{{"listen", taken}, {"watch", ""}}})
	want(t, all, "zone data", finding.OK, "time zones are known")
	want(t, all, "port "+taken, finding.Warn, "in use")
	want(t, all, "operator", finding.Warn, "no credentials")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, Run(t.Context(), Config{Dir: file, Operator: file}), "folder", finding.Fail, "is not a folder")
}

// TestRunning checks that the addresses of a running server are used, not those of the
// configuration.
func TestRunning(t *testing.T) {
	dir := t.TempDir()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ready")) }))
	watch := s.Listener.Addr().String()
	f, err := os.Create(filepath.Join(dir, "running-gateway"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(`{"watch":"` + watch + `"}`); err != nil || disk.TryLock(f) != nil {
		t.Fatal(err)
	}
	c := Config{Dir: dir, Operator: dir, Ports: []Port{{"listen", "127.0.0.1:1"}, {"watch", "127.0.0.1:1"}}}
	all := Run(t.Context(), c)
	want(t, all, "folder", finding.OK, "a server is running")
	want(t, all, "port "+watch, finding.OK, "as the running server recorded for watch")
	want(t, all, "ready", finding.OK, "ready")
	if text := fmt.Sprint(all); strings.Contains(text, "127.0.0.1:1:") {
		t.Errorf("an address of the configuration was checked: %s", text)
	}
	s.Close()
	want(t, Run(t.Context(), c), "port "+watch, finding.Warn, "nothing listens there")
}

// TestClock compares the clock with those of servers whose clocks are wrong.
func TestClock(t *testing.T) {
	for off, level := range map[time.Duration]finding.Level{0: finding.OK, time.Minute: finding.Warn, -time.Hour: finding.Fail} {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
		}))
		x := &examination{}
		x.server(t.Context(), s.URL, s.Client())
		want(t, x.List, "clock", level, "the server's")
		want(t, x.List, "server", finding.OK, "responded after")
		s.Close()
		x = &examination{}
		x.server(t.Context(), s.URL, s.Client())
		want(t, x.List, "server", finding.Fail, "refused")
	}
}
