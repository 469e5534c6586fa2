package ledger

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pressly/goose/v3"

	"loadstar/internal/pagesum"
)

func hasChecksums(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return pagesum.Has(f)
}

// TestAddsChecksums checks that the pages of a database of an older version get checksums,
// and that a newer one without them is refused.
func TestAddsChecksums(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	old, err := sql.Open("sqlite", path+"?_pragma=journal_mode(WAL)")
	must(t, err)
	files, err := fs.Sub(migrations, "migrations")
	must(t, err)
	p, err := goose.NewProvider(goose.DialectSQLite3, old, files)
	must(t, err)
	_, err = p.UpTo(t.Context(), checksumsFrom-1)
	must(t, err)
	_, err = old.Exec("INSERT INTO users (name, role, source, created) VALUES ('ada', 'viewer', 'admin', 7)")
	must(t, err)
	must(t, old.Close())
	if has, err := hasChecksums(path); has || err != nil {
		t.Fatal("the old database has checksums", err)
	}
	l, err := Open(t.Context(), "sqlite:"+path)
	must(t, err)
	var name string
	must(t, l.db.QueryRow("SELECT name FROM users WHERE created = 7").Scan(&name))
	copied := filepath.Join(t.TempDir(), "copy.db")
	must(t, l.Backup(t.Context(), copied))
	must(t, l.Close())
	must(t, VerifyFile(copied))
	for _, file := range []string{path, copied} {
		if has, err := hasChecksums(file); !has || err != nil {
			t.Error("no checksums", err)
		}
	}
	whole, err := os.ReadFile(path)
	must(t, err)
	whole[20] = 0 // number of reserved bytes
	must(t, os.WriteFile(path, whole, 0o600))
	_, err = Open(t.Context(), "sqlite:"+path)
	wantIs(t, err, ErrDamaged)
}

// TestDamage checks that damage in the database or its log is reported as such, and that
// nothing else is read from it.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := Open(t.Context(), "sqlite:"+path)
	must(t, err)
	join(t, l, "a", "b")
	log, err := os.ReadFile(path + "-wal")
	must(t, err)
	must(t, l.Close())
	whole, err := os.ReadFile(path)
	must(t, err)

	other := filepath.Join(t.TempDir(), "ledger.db")
	read := func(flip int) error {
		damaged := append([]byte(nil), whole...)
		damaged[flip] ^= 0x10
		must(t, os.WriteFile(other, damaged, 0o600))
		l, err := Open(t.Context(), "sqlite:"+other)
		if err != nil {
			return err
		}
		_, err = l.LastSeen(t.Context())
		return errors.Join(err, l.Close())
	}
	for off := 1000; off < len(whole); off += 11 * 4096 {
		if err := read(off); !errors.Is(err, ErrDamaged) {
			t.Errorf("a flip at byte %d: %v", off, err)
		}
	}
	if err := VerifyFile(other); err == nil {
		t.Error("a damaged copy was verified")
	}

	must(t, os.WriteFile(other, whole, 0o600))
	log[5000] ^= 1
	must(t, os.WriteFile(other+"-wal", log, 0o600))
	_, err = Open(t.Context(), "sqlite:"+other)
	wantIs(t, err, ErrDamaged)
}

// TestLockedWhileOpen checks that another program, here Python's SQLite, does not remove the
// log of a ledger that this process has open: what is committed afterwards would be lost in a
// crash.
func TestLockedWhileOpen(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	for i := range 2 { // the file is new, and then not
		l, err := Open(t.Context(), "sqlite:"+path)
		must(t, err)
		join(t, l, fmt.Sprint("a", i))
		run("python3", "-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM agents').fetchall(); c.close()", path)
		join(t, l, fmt.Sprint("b", i))
		crashed := t.TempDir()
		// Another process copies the files: closing them here would release the locks.
		run("sh", "-c", `cp "$0"* "$1"`, path, crashed)
		must(t, l.Close())
		c, err := Open(t.Context(), "sqlite:"+filepath.Join(crashed, "ledger.db"))
		must(t, err)
		if n, err := c.Agents(t.Context()); n != int64(2*(i+1)) || err != nil {
			t.Errorf("%d agents, want %d: %v", n, 2*(i+1), err)
		}
		must(t, c.Close())
	}
}
