package sqlstore

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"loadstar/internal/testkit"
)

// newLog creates a database with 100 transactions in its log, and returns the log and its
// index.
func newLog(t *testing.T, path string) (log, index []byte) {
	t.Helper()
	db, err := sql.Open("sqlite", sqliteFile(path)+"?_pragma=journal_mode(WAL)&_pragma=wal_autocheckpoint(0)")
	testkit.Must(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	_, err = db.Exec("CREATE TABLE x (n INTEGER PRIMARY KEY, b BLOB)")
	testkit.Must(t, err)
	for i := range 100 {
		_, err := db.Exec("INSERT INTO x (b) VALUES (?)", bytes.Repeat([]byte{byte(i)}, 100*i))
		testkit.Must(t, err)
	}
	log, err = os.ReadFile(path + "-wal")
	testkit.Must(t, err)
	index, err = os.ReadFile(path + "-shm")
	testkit.Must(t, err)
	return log, index
}

// TestCheckLog damages every frame of a log.
func TestCheckLog(t *testing.T) {
	dir := t.TempDir()
	log, index := newLog(t, filepath.Join(dir, "x.db"))
	other := filepath.Join(dir, "other")
	check := func(log []byte) error {
		testkit.Must(t, os.WriteFile(other+"-wal", log, 0o600))
		return checkLog(other)
	}
	if err := check(log); err != nil {
		t.Error(err)
	}
	const frame = frameHeader + 4096
	for off := 100; off < len(log); off += frame {
		log[off] ^= 1
		err := check(log)
		log[off] ^= 1
		if late := off > len(log)-12*frame; !errors.Is(err, errLog) && !late {
			t.Errorf("a flip at byte %d of %d: %v", off, len(log), err)
		}
	}
	log[9] ^= 1
	if err := check(log); !errors.Is(err, errLog) {
		t.Errorf("a wrong header: %v", err)
	}
	log[9] ^= 1
	// After a power loss, the last frames may be missing or wrong.
	for n := range 3 {
		torn := bytes.Clone(log)
		torn[len(torn)-1-n*1000] ^= 1
		if err := check(torn); err != nil {
			t.Errorf("a torn end: %v", err)
		}
		if err := check(log[:len(log)-1-n*frame]); err != nil {
			t.Errorf("a short log: %v", err)
		}
	}
	testkit.Must(t, os.WriteFile(other+"-shm", index, 0o600))
	if err := check(log); err != nil {
		t.Error(err)
	}
	for _, n := range []int{logHeader, len(log) / 2, len(log) - 1} {
		if err := check(log[:n]); !errors.Is(err, errLog) {
			t.Errorf("a log cut to %d of %d bytes, with its index: %v", n, len(log), err)
		}
	}
	if err := checkLog(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

// TestCheckForeignLog checks that logs left by SQLite's own program are not reported as
// damaged.
func TestCheckForeignLog(t *testing.T) {
	if _, err := exec.LookPath("sqlite3"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	dir := t.TempDir()
	log, index := newLog(t, filepath.Join(dir, "x.db"))
	content, err := os.ReadFile(filepath.Join(dir, "x.db"))
	testkit.Must(t, err)
	const die = "\n.shell kill -9 $PPID\n" // makes the log remain
	for i, script := range []string{
		"SELECT count(*) FROM x;",
		"SELECT count(*) FROM x;" + die,
		"PRAGMA wal_checkpoint(FULL);" + die,
		"PRAGMA wal_checkpoint(TRUNCATE);" + die,
		"PRAGMA wal_checkpoint(RESTART); INSERT INTO x (b) VALUES (1);" + die,
		"PRAGMA wal_checkpoint(RESTART); INSERT INTO x (b) VALUES (1); INSERT INTO x (b) VALUES (2); DELETE FROM x WHERE n < 3;" + die,
		"INSERT INTO x (b) VALUES (1);" + die,
		"PRAGMA cache_size = 5; BEGIN; UPDATE x SET b = zeroblob(9000);" + die, // with frames that are not committed
		"PRAGMA cache_size = 5; BEGIN; UPDATE x SET b = zeroblob(9000); ROLLBACK; INSERT INTO x (b) VALUES (1); INSERT INTO x (b) VALUES (2);" + die,
		"VACUUM;" + die,
		"PRAGMA journal_mode = DELETE;",
	} {
		path := filepath.Join(dir, fmt.Sprintf("%d.db", i))
		testkit.Must(t, os.WriteFile(path, content, 0o600))
		testkit.Must(t, os.WriteFile(path+"-wal", log, 0o600))
		if i%2 == 0 {
			testkit.Must(t, os.WriteFile(path+"-shm", index, 0o600))
		}
		cmd := exec.Command("sqlite3", "-bail", path)
		cmd.Stdin = bytes.NewBufferString(script)
		out, err := cmd.CombinedOutput()
		if killed := cmd.ProcessState.ExitCode() < 0; err != nil && !killed {
			t.Fatalf("%q: %v: %s", script, err, out)
		}
		if err := checkLog(path); err != nil {
			t.Errorf("%q: %v", script, err)
		}
	}
}
