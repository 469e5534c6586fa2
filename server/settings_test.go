package server

import (
	"bytes"
	"context"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/finding"
	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// opening opens and closes a server, and returns the server's log and the error.
func opening(t *testing.T, c Config) (said string, err error) {
	t.Helper()
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := &server{Config: c, registry: prometheus.NewRegistry()}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = s.open(ctx)
	s.close()
	return log.String(), err
}

// TestUnsafeDatabaseIsRefused checks that a server does not start on a database that can lose
// commits, unless this is allowed.
func TestUnsafeDatabaseIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	pg := pgtest.Single(t)
	st := newStation(t, func(c *Config) { c.Database = pg.URL("postgres") })
	st.join("a0")
	st.stop()
	c := st.Config
	if said, err := opening(t, c); err != nil || strings.Contains(said, "cleanly") {
		t.Fatalf("%v\n%s", err, said)
	}
	db, err := sql.Open("pgx", pg.URL("postgres"))
	testkit.Must(t, err)
	defer db.Close()
	_, err = db.Exec("ALTER ROLE postgres SET synchronous_commit = off")
	testkit.Must(t, err)
	for _, role := range Roles() {
		one := c
		one.Roles = []string{role}
		if _, err := opening(t, one); err == nil || !strings.Contains(err.Error(), "synchronous_commit = on") || !strings.Contains(err.Error(), "store.allow_loss") {
			t.Errorf("%s: %v", role, err)
		}
	}
	c.AllowLoss = true
	if said, err := opening(t, c); err != nil || !strings.Contains(said, "synchronous_commit: off") {
		t.Errorf("with store.allow_loss: %v\n%s", err, said)
	}
	all := Examine(t.Context(), c)
	testkit.WantFinding(t, all, "database's synchronous_commit", finding.Fail, "off")
	testkit.WantFinding(t, all, "database's schema", finding.OK, "version")
	testkit.WantFinding(t, all, "clock and the database", finding.OK, "the database's")
	testkit.WantFinding(t, all, "agents", finding.OK, "1 of 1")
	testkit.Must(t, pg.Stop())
	all = Examine(t.Context(), c)
	testkit.WantFinding(t, all, "database's answer", finding.Fail, "connect")
	testkit.WantFinding(t, all, "issuer of certificates", finding.OK, "days left")
}

// TestUncleanEnd checks that a process detects that the previous one did not end cleanly, that
// a server does not start on a damaged ledger, and that doctor describes the damage.
func TestUncleanEnd(t *testing.T) {
	st := newStation(t, nil)
	st.join("a0")
	st.stop()
	if left, err := filepath.Glob(filepath.Join(st.Dir, runningFile+"*")); err != nil || len(left) > 0 {
		t.Fatalf("after a clean end: %v, %v", left, err)
	}
	if said, err := opening(t, st.Config); err != nil || strings.Contains(said, "did not end cleanly") {
		t.Fatalf("%v\n%s", err, said)
	}
	marker := filepath.Join(st.Dir, runningFile+strings.Join(Roles(), "-"))
	testkit.Must(t, os.WriteFile(marker, nil, 0o600))
	if said, err := opening(t, st.Config); err != nil || !strings.Contains(said, "did not end cleanly") {
		t.Fatalf("%v\n%s", err, said)
	}
	if said, err := opening(t, st.Config); err != nil || strings.Contains(said, "did not end cleanly") {
		t.Fatalf("a clean end after it: %v\n%s", err, said)
	}

	testkit.Must(t, os.WriteFile(marker, nil, 0o600))
	path := filepath.Join(st.Dir, ledgerFile)
	data, err := os.ReadFile(path)
	testkit.Must(t, err)
	data[4*4096] ^= 0x10 // this byte is the type of the fifth page
	testkit.Must(t, os.WriteFile(path, data, 0o600))
	for range 2 {
		if said, err := opening(t, st.Config); err == nil || !strings.Contains(err.Error(), "is damaged") || !strings.Contains(err.Error(), "restore the newest backup") {
			t.Fatalf("%v\n%s", err, said)
		}
	}
	testkit.WantFinding(t, Examine(t.Context(), st.Config), "database's integrity", finding.Fail, "is damaged")
}

// TestExamine checks that a server's folder can be examined before, while and after the server
// runs, and that the examination leaves no files behind.
func TestExamine(t *testing.T) {
	st := newStation(t, nil)
	st.join("a0")
	st.Version = "test"
	all := Examine(t.Context(), st.Config)
	for _, check := range []string{"database's schema", "database's integrity", "database's journal", "blobs", "disk of the server", "writing for the server", "issuer of certificates", "root certificate", "agents", "agents' versions"} {
		testkit.WantFinding(t, all, check, finding.OK, "")
	}
	st.stop()
	before := listing(t, st.Dir)
	testkit.WantFinding(t, Examine(t.Context(), st.Config), "blobs", finding.OK, "deleted")
	if after := listing(t, st.Dir); after != before {
		t.Errorf("the folder had\n%s\nand has\n%s", before, after)
	}
	dir := filepath.Join(t.TempDir(), "none")
	testkit.WantFinding(t, Examine(t.Context(), Config{Dir: dir}), "database's schema", finding.OK, "no database yet")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder was made: %v", err)
	}
}

func listing(t *testing.T, dir string) string {
	var all []string
	testkit.Must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, path)
		}
		return err
	}))
	return strings.Join(all, "\n")
}
