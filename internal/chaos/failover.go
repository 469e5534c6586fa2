package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"loadstar/internal/pgtest"
)

// replicated starts PostgreSQL with a standby, and returns the address of both.
func (s *system) replicated() (string, error) {
	dir := filepath.Join(s.dir, "pg")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	pair, err := pgtest.StartPair(dir, true)
	if err != nil {
		return "", err
	}
	s.pair = pair
	s.servers = append(s.servers, pairPart{pair})
	return pair.URL(database), pair.Primary().Create(database)
}

// pairPart is the part that ends both servers of a pair.
type pairPart struct{ *pgtest.Pair }

func (p pairPart) Kind() string     { return kindPostgres }
func (p pairPart) Name() string     { return kindPostgres }
func (p pairPart) Log(n int) string { return tail(p.Pair.Log(), n) }
func (p pairPart) Start() error     { return nil }
func (p pairPart) Kill() error      { return p.Crash() }
func (p pairPart) Stop() error      { return p.Crash() }

// These are the ways in which the primary ends.
const (
	byKill      = "SIGKILL"
	byImmediate = "immediate stop"
)

// noticeMost is the longest time that an operator's tool takes to promote the standby. The
// shortest is 0, so that some failovers happen while servers still reconnect.
const noticeMost = time.Second

// failover kills PostgreSQL's primary, promotes the standby, and makes the former primary
// the new standby.
type failover struct {
	*repeated
	rewound, copied int
	promoted        []time.Duration // from the kill until the standby accepts writes
	whole           []time.Duration // from the kill until there is a standby again
}

func newFailover(t *trial, log io.Writer) *failover {
	f := &failover{repeated: newRepeated(t, log, byKill, byImmediate)}
	f.once = f.fail
	return f
}

// fail runs failover i.
func (f *failover) fail(ctx context.Context, i int) error {
	pair := f.system.pair
	how, end := byKill, pair.Primary().Crash
	if f.rng.IntN(2) == 0 {
		how, end = byImmediate, pair.Primary().Quit
	}
	notice, copied := time.Duration(f.rng.Int64N(int64(noticeMost))), i%5 == 4
	f.begin(how, "promoted after %d ms, copied %t", notice.Milliseconds(), copied)
	begun := time.Now()
	if err := end(); err != nil {
		return err
	}
	sleep(ctx, notice) // if the test ends now, it still needs a primary to look at
	if err := pair.Promote(); err != nil {
		return err
	}
	f.promoted = append(f.promoted, time.Since(begun))
	if err := pair.Rebuild(copied); err != nil {
		return err
	}
	f.whole = append(f.whole, time.Since(begun))
	if copied {
		f.copied++
	} else {
		f.rewound++
	}
	return nil
}

// print implements injector.
func (f *failover) print(out io.Writer) {
	f.note("former primaries: %d rewound, %d copied; the standby accepted writes after a median of %.2f s (max %.2f s), and had its own standby after %.2f s (max %.2f s)",
		f.rewound, f.copied, quantile(f.promoted, 0.5).Seconds(), quantile(f.promoted, 1).Seconds(), quantile(f.whole, 0.5).Seconds(), quantile(f.whole, 1).Seconds())
	f.repeated.print(out)
}
