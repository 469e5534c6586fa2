package coordinator

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestSetBack checks that a coordinator does not wait until times from a clock that was ahead.
func TestSetBack(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	k := newCoordinator(Config{Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }})
	ahead := now.Add(365 * 24 * time.Hour)
	wait := func(at time.Time) {
		k.noticeSetBack()
		k.renew, k.until, k.nextCount, k.settled = at, at, at, at
		k.drivers["run"] = &driver{nextLook: at}
	}
	wait(now.Add(time.Second))
	now = now.Add(-time.Second) // two measurements may differ
	if k.noticeSetBack(); len(k.drivers) != 1 || k.renew.IsZero() {
		t.Error("a small difference was taken for a clock that was set back")
	}
	right := now
	now = ahead
	wait(now.Add(time.Second))
	now = right
	if k.noticeSetBack(); len(k.drivers) != 0 || !k.renew.IsZero() || !k.until.IsZero() || !k.nextCount.IsZero() || !k.settled.IsZero() {
		t.Error("the coordinator still waits for a time in a year")
	}
}
