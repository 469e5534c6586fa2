package sqlstore

import (
	"context"
	"sync/atomic"
	"time"

	"loadstar/internal/backoff"
)

const (
	clockEvery = 30 * time.Second // between measurements
	clockTries = 3                // number of queries per measurement
)

// clock is the database's clock. It determines when leases and the lead expire, so that
// machines whose clocks differ agree on this. Between two measurements it advances with the
// machine's monotonic clock, so changing the machine's wall clock has no effect.
type clock struct {
	local func() time.Time // replaced by tests
	at    atomic.Pointer[clockReading]
}

// clockReading is a measurement of the database's time when the machine's clock showed
// local.
type clockReading struct{ local, database time.Time }

// Now returns the time by the database's clock. SQLite has no clock of its own, and is used
// only by the processes of one machine.
func (s *Store) Now() time.Time {
	now := s.clock.local()
	if r := s.clock.at.Load(); r != nil {
		return r.database.Add(now.Sub(r.local))
	}
	return now
}

// readClock measures the database's clock. It uses the fastest of several answers, because the
// error is at most half the round-trip time.
func (s *Store) readClock(ctx context.Context) error {
	if s.SQLite {
		return nil
	}
	var best clockReading
	var quickest time.Duration
	for i := range clockTries {
		before := s.clock.local()
		var ms int64
		if err := s.DB.QueryRowContext(ctx, "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)").Scan(&ms); err != nil {
			return err
		}
		took := s.clock.local().Sub(before)
		if i == 0 || took < quickest {
			best, quickest = clockReading{before.Add(took / 2), time.UnixMilli(ms)}, took
		}
	}
	s.clock.at.Store(&best)
	return nil
}

// followClock measures the database's clock repeatedly until the store is closed.
func (s *Store) followClock() {
	for backoff.Sleep(s.open, clockEvery) == nil {
		// While the database does not respond, the last measurement is sufficient, because
		// machines' clocks drift by a few milliseconds an hour.
		_ = s.readClock(s.open)
	}
}
