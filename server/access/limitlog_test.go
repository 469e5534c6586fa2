package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/connlimit"
)

// TestReport checks that the log and the page for operators name the limited callers, and do
// not grow in proportion to a flood of calls.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := NewLimitReport(slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())
		for range 1000 {
			r.Limited("calls", connlimit.Caller{Kind: connlimit.Agent, Name: "mallory"})
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "agent=mallory reason=calls times=1") {
			t.Errorf("%d lines: %s", n, log.String())
		}
		time.Sleep(logEvery)
		r.Limited("calls", connlimit.Caller{Kind: connlimit.Agent, Name: "mallory"})
		if !strings.Contains(log.String(), "times=1000") {
			t.Error(log.String())
		}
		log.Reset()
		for i := range 100_000 {
			r.Limited("connection rate", connlimit.Caller{Kind: connlimit.Address, Name: fmt.Sprint(i)})
		}
		if n := strings.Count(log.String(), "\n"); n > logBurst {
			t.Errorf("%d lines at once", n)
		}
		if n := r.all.Len(); n > maxReported {
			t.Errorf("%d callers are remembered", n)
		}
		for range 3 {
			r.Limited("calls", connlimit.Caller{Kind: connlimit.Agent, Name: "mallory"})
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, nil)
		var all []Limited
		if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		if len(all) != maxShown || all[0].Name != "mallory" || all[0].Times != 3 {
			t.Errorf("%d callers, the first is %+v", len(all), all[0])
		}
	})
}
