package coordinator

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

// TestClosedBus checks that after the channel of notifications is closed, Run does not treat it
// as an endless stream of notifications.
func TestClosedBus(t *testing.T) {
	l, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil { // each tick then logs an error
		t.Fatal(err)
	}
	var log bytes.Buffer
	woken := make(chan string)
	close(woken)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err = RunRegion(ctx, RegionConfig{
		Ledger: l, Client: http.DefaultClient, Poll: time.Hour, Woken: woken,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Errorf("it cannot release the lead, which is no reason to fail: %v", err)
	}
	if ticks := bytes.Count(log.Bytes(), []byte("retrying")); ticks > 2 {
		t.Errorf("%d ticks, want one at the start and one when the bus has closed", ticks)
	}
}
