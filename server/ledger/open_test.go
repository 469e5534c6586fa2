package ledger

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

func TestOpenRefuses(t *testing.T) {
	for _, at := range []string{"", "ledger.db", "mysql://x/y", "sqlite:", "sqlite::memory:", "sqlite:" + filepath.Join(t.TempDir(), "no", "folder", "x.db")} {
		if l, err := Open(t.Context(), at); err == nil {
			l.Close()
			t.Errorf("%q was accepted", at)
		}
	}
}

// TestOpenPath checks that Open accepts a path with characters that have a special meaning
// in a URL.
func TestOpenPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "100%25 of it?", "a#b&c=d")
	testkit.Must(t, os.MkdirAll(dir, 0o755))
	l := open(t, "sqlite:"+filepath.Join(dir, "x.db"))
	join(t, l, "a")
	if _, err := os.Stat(filepath.Join(dir, "x.db")); err != nil {
		t.Fatal(err)
	}
}

// TestDurable checks that every connection syncs to disk at a commit.
func TestDurable(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l := open(t, at)
		want := map[string]string{"synchronous_commit": "on", "fsync": "on"}
		if l.Store.SQLite {
			want = map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"}
		}
		for _, db := range []*sqlstore.Pool{l.Store.DB, l.Store.Write} {
			for name, value := range want {
				text := "SHOW " + name
				if l.Store.SQLite {
					text = "PRAGMA " + name
				}
				var got string
				testkit.Must(t, db.QueryRow(text).Scan(&got))
				pgtest.Equal(t, name, got, value)
			}
		}
	})
}

// TestOpenAtOnce checks that a new database can be opened many times concurrently, in this
// process and in other processes.
func TestOpenAtOnce(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				l, err := Open(t.Context(), at)
				if err != nil {
					t.Error(err)
					return
				}
				if err := l.Store.Healthy(t.Context()); err != nil {
					t.Error(err)
				}
				if _, err := l.Runs(t.Context(), 1); err != nil {
					t.Error(err)
				}
				l.Close()
			})
		}
		for range 3 {
			wg.Go(func() {
				cmd := exec.Command(os.Args[0], "open")
				cmd.Env = append(os.Environ(), "LEDGER_CHILD="+at)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		wg.Wait()
		l := open(t, at)
		var n int
		testkit.Must(t, l.Store.DB.QueryRow("SELECT count(*) FROM goose_db_version WHERE version_id = 1").Scan(&n))
		pgtest.Equal(t, "migrations to version 1", n, 1)
	})
}

// TestNewerSchema checks that Open refuses a ledger that a newer Loadstar has migrated, and
// changes nothing in it.
func TestNewerSchema(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s := plant(t, at, 3)
		_, err := s.Store.Write.Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (1000, $1)", true)
		testkit.Must(t, err)
		before := pgtest.Dump(t, s.Store.DB, append(tables, "goose_db_version")...)
		l, err := Open(t.Context(), at)
		if err == nil {
			l.Close()
		}
		if want := "the ledger was written by a newer Loadstar (schema 1000, this one knows "; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		pgtest.Equal(t, "refused", pgtest.Dump(t, s.Store.DB, append(tables, "goose_db_version")...), before)
	})
}

func TestReopen(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s := plant(t, at, 3)
		s.ask(0, 0, 0, 1, 2)
		s.count(one("agent", 0, 0, "c00001"))
		before := pgtest.Dump(t, s.Store.DB, tables...)
		testkit.Must(t, s.Close())
		if err := s.Store.Healthy(t.Context()); err == nil {
			t.Error("a closed ledger is healthy")
		}
		pgtest.Equal(t, "reopened", pgtest.Dump(t, open(t, at).Store.DB, tables...), before)
	})
}

func TestBackup(t *testing.T) {
	s := plant(t, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"), 600)
	s.ask(0, 0, upTo(600)...)
	path := filepath.Join(t.TempDir(), "a copy.db")
	before := pgtest.Dump(t, s.Store.DB, tables...)
	testkit.Must(t, s.Store.Backup(t.Context(), path))
	if err := s.Store.Backup(t.Context(), path); err == nil {
		t.Error("a backup overwrote another file")
	}
	l := open(t, "sqlite:"+path)
	pgtest.Equal(t, "the backup", pgtest.Dump(t, l.Store.DB, tables...), before)
	join(t, l, "later")

	// Take another backup while turns are counted; it must hold a consistent state. The
	// last turn waits for the backup, so that counting continues throughout.
	begun, stop, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i, c := range named("c", 600) {
			if i == 599 {
				<-stop
			}
			a := []Arrival{one("agent", 0, 0, c)}
			if _, err := s.Counter.Count(t.Context(), "run", a, sums(a)); err != nil {
				t.Error(err)
			}
			if i == 0 {
				close(begun)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	<-begun
	path = filepath.Join(t.TempDir(), "another.db")
	testkit.Must(t, s.Store.Backup(t.Context(), path))
	close(stop)
	<-done
	copied := &site{open(t, "sqlite:"+path), t, s.lead, s.run, 0}
	leases, receipts := copied.balance()
	pgtest.Equal(t, "turns", leases+receipts, 600)
	if receipts == 0 || leases == 0 {
		t.Errorf("%d receipts, %d leases: nothing was counted during the backup", receipts, leases)
	}
}

func TestBackupOfPostgres(t *testing.T) {
	l := open(t, cluster.Database(t))
	if err := l.Store.Backup(t.Context(), filepath.Join(t.TempDir(), "x")); err == nil {
		t.Error("PostgreSQL was backed up")
	}
}
