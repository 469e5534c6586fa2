package ledger

import (
	"context"
	"sync/atomic"
	"time"

	"loadstar/internal/backoff"
)

const (
	clockEvery = 30 * time.Second // between measurements
	clockTries = 3                // queries of a measurement
)

// clock is the database's clock. Leases and the lead end by it, so that machines whose
// clocks differ agree when they end. Between two measurements it advances with the
// machine's monotonic clock, so a machine whose time of day is set does not matter.
type clock struct {
	local func() time.Time // replaced by tests
	at    atomic.Pointer[clockReading]
}

// clockReading is one measurement: the database's time when the machine's clock showed
// local.
type clockReading struct{ local, database time.Time }

// Now returns the time by the database's clock. SQLite has no clock of its own, and only
// the processes of one machine use it.
func (l *Ledger) Now() time.Time {
	now := l.clock.local()
	if r := l.clock.at.Load(); r != nil {
		return r.database.Add(now.Sub(r.local))
	}
	return now
}

// readClock measures the database's clock. It takes the quickest of several answers,
// because the error is at most half the time that an answer took.
func (l *Ledger) readClock(ctx context.Context) error {
	if l.sqlite {
		return nil
	}
	var best clockReading
	var quickest time.Duration
	for i := range clockTries {
		before := l.clock.local()
		var ms int64
		if err := l.db.QueryRowContext(ctx, "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)").Scan(&ms); err != nil {
			return err
		}
		took := l.clock.local().Sub(before)
		if i == 0 || took < quickest {
			best, quickest = clockReading{before.Add(took / 2), time.UnixMilli(ms)}, took
		}
	}
	l.clock.at.Store(&best)
	return nil
}

// followClock measures the database's clock again and again until the ledger is closed.
func (l *Ledger) followClock() {
	for backoff.Sleep(l.open, clockEvery) == nil {
		// While the database does not answer, the last measurement is good enough: the
		// clocks of machines drift by some milliseconds an hour.
		_ = l.readClock(l.open)
	}
}
