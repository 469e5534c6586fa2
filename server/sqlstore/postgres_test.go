package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"loadstar/internal/testkit/pgtest"
)

// plain opens connections with the driver's defaults, as psql would.
func plain(t *testing.T, at string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func execute(t *testing.T, db *sql.DB, text string) {
	t.Helper()
	if _, err := db.Exec(text); err != nil {
		t.Fatal(err)
	}
}

// TestCancelledCommitStaysHidden checks that no session sees a transaction whose commit waits
// for a standby, even if the caller gives up. Cancelling the wait would make the transaction
// visible, and a failover could then lose what other sessions have already seen.
func TestCancelledCommitStaysHidden(t *testing.T) {
	t.Parallel()
	s := pgtest.Single(t)
	at := s.URL("postgres")
	l := open(t, at)
	db := plain(t, at)
	execute(t, db, "CREATE TABLE seen (x BIGINT)")
	execute(t, db, "ALTER SYSTEM SET synchronous_standby_names = 'absent'")
	execute(t, db, "SELECT pg_reload_conf()")
	waiting := func() (n int64) {
		err := db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	x := 0 // number of the commit that waits; commits wait only after PostgreSQL has read the setting
	for end := time.Now().Add(2 * time.Minute); ; {
		x++
		go func() {
			over <- l.Update(ctx, func(tx *Txn) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO seen VALUES ($1)", x)
				return err
			})
		}()
		for len(over) == 0 && waiting() == 0 && time.Now().Before(end) {
			time.Sleep(10 * time.Millisecond)
		}
		if len(over) == 0 && waiting() > 0 {
			break
		}
		if err := <-over; err != nil || time.Now().After(end) {
			t.Fatalf("the commit does not wait for the standby: %v", err)
		}
	}
	cancel()
	if err := <-over; err == nil {
		t.Error("a commit that the standby does not have succeeded")
	}
	for range 30 { // a cancel request would arrive within milliseconds
		var n int
		if err := db.QueryRow("SELECT count(*) FROM seen WHERE x = $1", x).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			t.Fatal("others see a transaction that the standby does not have")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if waiting() == 0 {
		t.Error("the commit no longer waits for the standby")
	}
}

// TestSilentDatabase checks that a statement fails, and can be retried, if the link to the
// database carries no more data although the connection stays open.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	s := pgtest.Single(t)
	var silent atomic.Bool
	at := "postgres://postgres@" + link(t, s.Addr(), &silent) + "/postgres?sslmode=disable"
	l := open(t, at)
	l.limit.Store(int64(time.Second))
	if err := l.Healthy(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent.Store(true)
	begun := time.Now()
	err := l.Update(t.Context(), func(tx *Txn) error {
		_, err := tx.Exec("SELECT 1")
		return err
	})
	if err == nil || !Unreachable(err) {
		t.Errorf("a statement over a silent link: %v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the statement failed after %s", took)
	}
	silent.Store(false)
	for end := time.Now().Add(2 * time.Minute); ; {
		if err = l.Healthy(t.Context()); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the ledger does not recover: %v", err)
		}
	}
}

// link listens on an address, which it returns, and forwards connections to another address.
// While silent is set, it reads data but forwards nothing.
func link(t *testing.T, to string, silent *atomic.Bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	carry := func(to, from net.Conn) {
		defer to.Close()
		b := make([]byte, 1<<16)
		for {
			n, err := from.Read(b)
			if n > 0 && !silent.Load() {
				if _, err := to.Write(b[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			go carry(c, d)
			go carry(d, c)
		}
	}()
	return l.Addr().String()
}

// TestFailover checks that an address with several hosts leads to the host that accepts writes,
// before and after a failover, even if the address does not ask for such a host.
func TestFailover(t *testing.T) {
	t.Parallel()
	p := pair(t)
	at := strings.ReplaceAll(p.URL("postgres"), "&target_session_attrs=read-write", "")
	s := open(t, at)
	writes(t, s)
	for i := range 2 {
		if err := errors.Join(p.Primary().Crash(), p.Promote(), p.Rebuild(i == 0)); err != nil {
			t.Fatal(err)
		}
		writes(t, s)
	}
}

// TestFormerPrimary checks that the ledger disconnects from a former primary that still runs
// and accepts writes after its standby has taken over, and does not return to it.
func TestFormerPrimary(t *testing.T) {
	t.Parallel()
	p := pair(t)
	s := open(t, p.URL("postgres"))
	s.commitFor = time.Second
	writes(t, s)
	former := p.Primary()
	if err := p.Promote(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = former.Crash() })
	// The new primary would also wait for a standby. There is none, because the former primary
	// cannot become a standby yet.
	execute(t, plain(t, p.Primary().URL("postgres")+"&synchronous_commit=local"), "ALTER ROLE postgres SET synchronous_commit = local")
	writes(t, s)
	if n, err := s.Timeline(t.Context()); err != nil || n != 2 {
		t.Errorf("timeline %d: %v", n, err)
	}
	alone, err := postgresConfig(former.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	alone.ValidateConnect = s.hosts.validate(alone.ValidateConnect)
	if c, err := pgx.ConnectConfig(t.Context(), alone); err == nil {
		_ = c.Close(t.Context())
		t.Error("the former primary was accepted")
	} else if !strings.Contains(err.Error(), "timeline 1, but another one had 2") {
		t.Error(err)
	}
}

// pair starts a primary with a standby for which commits wait.
func pair(t *testing.T) *pgtest.Pair {
	t.Helper()
	dir, err := os.MkdirTemp("", "pair")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := pgtest.StartPair(dir, true)
	if errors.Is(err, pgtest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Crash(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// writes writes to a ledger until it succeeds. All errors before that must be retryable.
func writes(t *testing.T, s *Store) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := s.Update(t.Context(), func(tx *Txn) error {
			_, err := tx.Exec("SELECT pg_logical_emit_message(true, 'test', '')")
			return err
		})
		if err == nil {
			return
		}
		if !Unreachable(err) {
			t.Fatalf("an error that is not taken for an unreachable database: %v", err)
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestLimitedConn checks that neither the limit nor a deadline of the driver is ignored.
func TestLimitedConn(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	limit := 50 * time.Millisecond
	c := &limitedConn{Conn: near, limit: func() time.Duration { return limit }}
	defer c.Close()
	b := make([]byte, 1)
	wait := func(what string, from, to time.Duration) {
		t.Helper()
		begun := time.Now()
		_, err := io.ReadFull(c, b)
		var late net.Error
		if took := time.Since(begun); !errors.As(err, &late) || !late.Timeout() || took < from || took > to {
			t.Errorf("%s: %v after %s", what, err, took)
		}
	}
	wait("the limit", limit/2, 10*time.Second)
	limit = time.Hour
	if err := c.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	wait("the driver's deadline", 0, 10*time.Second)
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() { // the driver cancels a read with a deadline in the past
		time.Sleep(20 * time.Millisecond)
		_ = c.SetDeadline(time.Unix(1, 0)) // the read fails with it
	}()
	wait("a cancelled read", 0, 10*time.Second)
}
