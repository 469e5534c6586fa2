package region

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/server/ledger"
)

// A bus that is closed says nothing more, and must not be taken for one that says
// something all the time.
func TestClosedBus(t *testing.T) {
	l, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil { // so that each turn is heard of
		t.Fatal(err)
	}
	var log bytes.Buffer
	woken := make(chan string)
	close(woken)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	Run(ctx, Config{ // it cannot resign
		Ledger: l, Client: http.DefaultClient, Poll: time.Hour, Woken: woken,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.NewRegistry(),
	})
	if turns := bytes.Count(log.Bytes(), []byte("\n")); turns > 2 {
		t.Errorf("%d turns, want one at the start and one when the bus has closed", turns)
	}
}
