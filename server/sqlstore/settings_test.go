package sqlstore

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/finding"
	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

func TestSettingsOfSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	s, err := Open(t.Context(), "sqlite:"+path)
	testkit.Must(t, err)
	look := func() finding.List {
		t.Helper()
		all, err := s.Settings(t.Context())
		testkit.Must(t, err)
		return all
	}
	testkit.WantFinding(t, look(), "database's journal", finding.OK, "every commit")
	testkit.Must(t, do(s.Write.DB, "PRAGMA synchronous = NORMAL"))
	testkit.WantFinding(t, look(), "database's journal", finding.Fail, "synchronous=1")
	testkit.Must(t, s.Close())
	// On a file system that does not support shared memory, SQLite falls back to another
	// journal.
	var all finding.List
	judgeSQLite(&all, "delete", 2)
	testkit.WantFinding(t, all, "database's journal", finding.Fail, "journal_mode=delete")
}

func do(db *sql.DB, text string) error {
	_, err := db.Exec(text)
	return err
}

func TestIntegrityOfSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	s, err := Open(t.Context(), "sqlite:"+path)
	testkit.Must(t, err)
	all, err := s.Integrity(t.Context())
	testkit.Must(t, err)
	testkit.WantFinding(t, all, "database's integrity", finding.OK, "no damage")
	testkit.Must(t, s.Close())
	data, err := os.ReadFile(path)
	testkit.Must(t, err)
	const page = 4096
	for i := 2 * page; i < len(data); i += page { // the first two pages contain the schema
		data[i] ^= 0xff // this byte is the kind of the page
	}
	testkit.Must(t, os.WriteFile(path, data, 0o600))
	s, _, err = OpenToLook(t.Context(), "sqlite:"+path)
	if err == nil {
		defer s.Close()
		all, err = s.Integrity(t.Context())
		testkit.Must(t, err)
		testkit.WantFinding(t, all, "database's integrity", finding.Fail, "is damaged")
	} else if !errors.Is(err, ErrDamaged) { // the damage is in the table of versions
		t.Error(err)
	}
}

func TestOpenToLook(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "none.db")
	if _, _, err := OpenToLook(t.Context(), "sqlite:"+path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files were made: %v %v", left, err)
	}
	at := cluster.Database(t)
	l, s, err := OpenToLook(t.Context(), at)
	testkit.Must(t, err)
	if s != (Schema{}) {
		t.Errorf("an empty database has the schema %+v", s)
	}
	var tables int
	testkit.Must(t, l.DB.QueryRow("SELECT COUNT(*) FROM pg_tables WHERE schemaname = current_schema()").Scan(&tables))
	if tables > 0 {
		t.Errorf("%d tables were made", tables)
	}
	testkit.Must(t, l.Close())
	full, err := Open(t.Context(), at)
	testkit.Must(t, err)
	defer full.Close()
	l, s, err = OpenToLook(t.Context(), at)
	testkit.Must(t, err)
	defer l.Close()
	if s.Version == 0 || s.Version != s.Known {
		t.Errorf("the schema is %+v", s)
	}
	want, err := full.Secret(t.Context(), "one")
	testkit.Must(t, err)
	var got []byte
	testkit.Must(t, l.DB.QueryRowContext(t.Context(), "SELECT value FROM secrets WHERE name = 'one'").Scan(&got))
	pgtest.Equal(t, "secret", got, want)
}

// TestSettingsOfPostgres checks every wrong setting on a real server.
func TestSettingsOfPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	s := pgtest.Single(t)
	testkit.Must(t, s.Create("ledger"))
	admin, err := sql.Open("pgx", s.URL("ledger"))
	testkit.Must(t, err)
	defer admin.Close()
	look := func() finding.List {
		t.Helper()
		// Open a new session, because settings of users and databases apply only to new sessions.
		l, err := Open(t.Context(), s.URL("ledger"))
		testkit.Must(t, err)
		defer l.Close()
		all, err := l.Settings(t.Context())
		testkit.Must(t, err)
		return all
	}
	set := func(text string) {
		t.Helper()
		testkit.Must(t, do(admin, text))
		if strings.HasPrefix(text, "ALTER SYSTEM") {
			testkit.Must(t, do(admin, "SELECT pg_reload_conf()"))
			time.Sleep(300 * time.Millisecond) // processes read the new settings when they are idle
		}
	}
	all := look()
	for _, check := range []string{"database", "database's fsync", "database's full_page_writes", "database's synchronous_commit", "database's standbys", "database's isolation", "database's connections", "database's checksums"} {
		testkit.WantFinding(t, all, check, finding.OK, "")
	}
	for _, k := range []struct {
		do, undo, check string
		level           finding.Level
		text            string
	}{
		{"ALTER ROLE postgres SET synchronous_commit = off", "ALTER ROLE postgres RESET synchronous_commit", "database's synchronous_commit", finding.Fail, "off: a crash"},
		{"ALTER DATABASE ledger SET synchronous_commit = off", "ALTER DATABASE ledger RESET synchronous_commit", "database's synchronous_commit", finding.Fail, "off: a crash"},
		{"ALTER SYSTEM SET synchronous_commit = off", "ALTER SYSTEM RESET synchronous_commit", "database's synchronous_commit", finding.Fail, "off: a crash"},
		{"ALTER SYSTEM SET synchronous_commit = local", "ALTER SYSTEM RESET synchronous_commit", "database's synchronous_commit", finding.OK, "local: a commit is on the primary's disk"},
		{"ALTER SYSTEM SET full_page_writes = off", "ALTER SYSTEM RESET full_page_writes", "database's full_page_writes", finding.Fail, "half-written"},
		{"ALTER ROLE postgres SET default_transaction_isolation = serializable", "ALTER ROLE postgres RESET default_transaction_isolation", "database's isolation", finding.OK, ""},
		{"ALTER ROLE postgres SET zero_damaged_pages = on", "ALTER ROLE postgres RESET zero_damaged_pages", "database's checksums", finding.Fail, "damaged pages"},
	} {
		set(k.do)
		testkit.WantFinding(t, look(), k.check, k.level, k.text)
		set(k.undo)
	}
	testkit.WantFinding(t, look(), "database's synchronous_commit", finding.OK, "on: a commit")
	l, err := Open(t.Context(), s.URL("ledger"))
	testkit.Must(t, err)
	defer l.Close()
	if n, err := l.Timeline(t.Context()); err != nil || n != 1 {
		t.Errorf("timeline %d: %v", n, err)
	}
	if off := l.ClockOffset().Abs(); off > time.Second {
		t.Errorf("the clock of the same machine is %v off", off)
	}
	found, err := l.Integrity(t.Context())
	testkit.Must(t, err)
	testkit.WantFinding(t, found, "database's integrity", finding.OK, "no page with a wrong checksum")
}

func TestJudgePostgres(t *testing.T) {
	good := postgres{fsync: "on", fullPages: "on", commit: "on", checksums: "on", isolation: "read committed", text: "16.1", version: 160_001, connections: 100, reserved: 3}
	for _, k := range []struct {
		change func(*postgres)
		check  string
		level  finding.Level
		text   string
	}{
		{func(p *postgres) { p.recovering = true }, "database", finding.Fail, "a standby"},
		{func(p *postgres) { p.version = 120_005 }, "database", finding.Warn, "no longer receives corrections"},
		{func(p *postgres) { p.fsync = "off" }, "database's fsync", finding.Fail, "power loss"},
		{func(p *postgres) { p.standbys, p.visible = 1, 1 }, "database's standbys", finding.Warn, "none of them synchronously"},
		{func(p *postgres) { p.standbys, p.standbyNames = 1, "a" }, "database's standbys", finding.OK, "pg_monitor"},
		{func(p *postgres) { p.standbyNames = "a" }, "database's standbys", finding.Warn, "commits wait"},
		{func(p *postgres) { p.standbys, p.visible, p.synchronous, p.standbyNames = 2, 2, 1, "a" }, "database's standbys", finding.OK, "1 are synchronous"},
		{func(p *postgres) { p.commit, p.standbyNames = "local", "a" }, "database's synchronous_commit", finding.Warn, "does not wait"},
		{func(p *postgres) { p.commit, p.standbyNames = "remote_write", "a" }, "database's synchronous_commit", finding.Warn, "remote_write"},
		{func(p *postgres) { p.commit, p.standbyNames = "remote_apply", "a" }, "database's synchronous_commit", finding.OK, "synchronous standbys"},
		{func(p *postgres) { p.isolation = "serializable" }, "database's isolation", finding.Fail, "serializable"},
		{func(p *postgres) { p.checksums = "off" }, "database's checksums", finding.Warn, "data_checksums is off"},
		{func(p *postgres) { p.connections = 20 }, "database's connections", finding.Warn, "17 connections"},
	} {
		p := good
		k.change(&p)
		var all finding.List
		p.judge(&all)
		testkit.WantFinding(t, all, k.check, k.level, k.text)
	}
}

// TestFsyncOff checks a server that does not sync and has few connections.
func TestFsyncOff(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	dir, err := os.MkdirTemp("", "pg")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, err := pgtest.Start(dir, 0, pgtest.With("fsync=off", "max_connections=20"))
	if errors.Is(err, pgtest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Crash()) })
	l, err := Open(t.Context(), s.URL("postgres"))
	testkit.Must(t, err)
	defer l.Close()
	all, err := l.Settings(t.Context())
	testkit.Must(t, err)
	testkit.WantFinding(t, all, "database's fsync", finding.Fail, "power loss")
	testkit.WantFinding(t, all, "database's connections", finding.Warn, "17 connections")
}

// TestStandbys checks a pair of servers whose commits may or may not wait for the standby.
func TestStandbys(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	for _, k := range []struct {
		synchronous bool
		level       finding.Level
		text        string
	}{{true, finding.OK, "1 are synchronous"}, {false, finding.Warn, "none of them synchronously"}} {
		dir, err := os.MkdirTemp("", "pg")
		testkit.Must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		testkit.Must(t, os.Chmod(dir, 0o755))
		p, err := pgtest.StartPair(dir, k.synchronous)
		if errors.Is(err, pgtest.ErrMissing) && os.Getenv("CI") == "" {
			t.Skip(err)
		}
		testkit.Must(t, err)
		t.Cleanup(func() { testkit.Must(t, p.Crash()) })
		s, err := Open(t.Context(), p.URL("postgres"))
		testkit.Must(t, err)
		defer s.Close()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			all, err := s.Settings(t.Context())
			testkit.Must(t, err)
			i := slices.IndexFunc(all, func(f finding.Finding) bool { return f.Check == "database's standbys" })
			if strings.Contains(all[i].Text, k.text) || time.Now().After(end) { // waits until the standby connects
				testkit.WantFinding(t, all, "database's standbys", k.level, k.text)
				break
			}
		}
		before, err := s.Timeline(t.Context())
		testkit.Must(t, err)
		testkit.Must(t, p.Primary().Crash())
		testkit.Must(t, p.Promote())
		next, err := Open(t.Context(), p.URL("postgres"))
		testkit.Must(t, err)
		defer next.Close()
		if after, err := next.Timeline(t.Context()); err != nil || after != before+1 {
			t.Errorf("timeline %d after %d: %v", after, before, err)
		}
	}
}
