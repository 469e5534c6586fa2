package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/testkit"
)

// buffer is a buffer that an agent writes while the test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestAlone runs an agent without a model and without a server: it forecasts from readings that
// arrive over HTTP, and the commands work while it runs and afterwards.
func TestAlone(t *testing.T) {
	address := testkit.AddressFor(t)
	path := filepath.Join(t.TempDir(), "agent.yaml")
	write := func(clients string) {
		text := fmt.Sprintf("site: {zone: Europe/Berlin, interval: 15m}\nserver: none\nhttp: {listen: %q}\nforecast: {drop: drop}\nclients: %s\n", address, clients)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{a: , b: }")
	var log buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	said := func(f func(o Options) error) string {
		t.Helper()
		var out bytes.Buffer
		if err := f(Options{Config: path, Out: &out, Log: logger}); err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		return out.String()
	}
	if text := said(func(o Options) error { return Check(t.Context(), o) }); !strings.Contains(text, "client b: files in the inbox and HTTP") {
		t.Error(text)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, Options{Config: path, Out: io.Discard, Log: logger}) }()
	defer stop()

	now := time.Now().UTC().Truncate(15 * time.Minute)
	rows := "unique_id,ds,y\n"
	for at := now.AddDate(0, 0, -9); at.Before(now); at = at.Add(15 * time.Minute) {
		for i, name := range []string{"a", "b"} {
			rows += fmt.Sprintf("%s,%s,%d\n", name, at.Format(time.RFC3339), at.Hour()+i+1)
		}
	}
	post := func(path, body string) (int, string) {
		r, err := http.Post("http://"+address+path, "text/csv", strings.NewReader(body))
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body) // an incomplete answer fails the test below
		return r.StatusCode, string(text)
	}
	testkit.Eventually(t, "the HTTP interface", func() bool { code, _ := post("/v1/readings", rows); return code == http.StatusOK })
	audited := func() string {
		if err := Audit(t.Context(), Options{Config: path, Out: io.Discard, Log: logger}, "a", false); err != nil {
			return err.Error()
		}
		return "no error"
	}
	if text := audited(); !strings.Contains(text, "nothing leaves it") {
		t.Errorf("the audit of an agent without a server: %s", text)
	}
	if code, text := post("/v1/forecasts/a", ""); code != http.StatusOK || !strings.Contains(text, `"week"`) {
		t.Errorf("%d: %s", code, text)
	}
	status := func(o Options) error { return Status(t.Context(), o) }
	testkit.Eventually(t, "the status", func() bool { return strings.Count(said(status), "readings OK to") == 2 })
	if text := said(func(o Options) error { return Model(t.Context(), o, "pin", "a") }); !strings.Contains(text, "keeps its model") {
		t.Error(text)
	}
	for _, x := range [][2]string{{"pin", "nobody"}, {"paint", "a"}, {"rollback", "a"}} {
		if err := Model(t.Context(), Options{Config: path, Out: io.Discard, Log: logger}, x[0], x[1]); err == nil {
			t.Errorf("model %s %s: no error", x[0], x[1])
		}
	}
	write("{a: , b: , c: }")
	if p, err := os.FindProcess(os.Getpid()); err == nil && reloadSignal != nil {
		if err := p.Signal(reloadSignal); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the new client", func() bool { return strings.Contains(said(status), "c  ") })
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if text := audited(); !strings.Contains(text, "nothing leaves it") {
		t.Errorf("the audit of an agent that is not running: %s", text)
	}
	if text := said(status); !strings.Contains(text, "the agent is not running") || !strings.Contains(text, "pinned") {
		t.Error(text)
	}
}
