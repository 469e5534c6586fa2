package pagesum

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"modernc.org/sqlite"
)

func open2(t *testing.T, path, more string) *sql.DB {
	t.Helper()
	if err := Register(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path+"?vfs="+VFS+"&_pragma="+Pragma+"(1)"+more)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := db.Exec(text, args...); err != nil {
		t.Fatal(err)
	}
}

const wal = "&_pragma=journal_mode(WAL)"

// fill creates a table with rows, some of which need overflow pages.
func fill(t *testing.T, db *sql.DB) {
	t.Helper()
	exec(t, db, "CREATE TABLE x (n INTEGER PRIMARY KEY, b BLOB)")
	for i := range 100 {
		exec(t, db, "INSERT INTO x (b) VALUES (?)", bytes.Repeat([]byte{byte(i)}, 100*i))
	}
}

func content(db *sql.DB) (string, error) {
	rows, err := db.Query("SELECT n, b FROM x ORDER BY n")
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var all strings.Builder
	for rows.Next() {
		var n int
		var b []byte
		if err := rows.Scan(&n, &b); err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%d %x\n", n, b)
	}
	return all.String(), rows.Err()
}

// TestFlips flips a bit in every page of a database. Each must be found.
func TestFlips(t *testing.T) {
	for name, more := range map[string]string{"wal": wal, "journal": ""} {
		path := filepath.Join(t.TempDir(), name+".db")
		db := open2(t, path, more)
		fill(t, db)
		want, err := content(db)
		if err != nil {
			t.Fatal(err)
		}
		db.Close()
		if ok, err := has(path); err != nil || !ok {
			t.Fatalf("%s: no checksums: %v", name, err)
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for off := 2000; off < len(whole); off += 4096 {
			whole[off] ^= 4
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
			whole[off] ^= 4
			db := open2(t, path, more)
			got, err := content(db)
			var failed *sqlite.Error
			if err == nil && got != want {
				t.Fatalf("%s: a flip at byte %d changed the content", name, off)
			}
			if err != nil && (!errors.As(err, &failed) || failed.Code() != Failed) {
				t.Errorf("%s: a flip at byte %d: %v", name, off, err)
			}
			if err == nil && off < len(whole)-8192 {
				t.Errorf("%s: a flip at byte %d was not found", name, off)
			}
			db.Close()
		}
	}
}

// TestVacuum checks that a database without checksums gets them.
func TestVacuum(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	old, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	fill(t, old)
	old.Close()
	db := open2(t, path, wal)
	if ok, err := has(path); err != nil || ok {
		t.Fatalf("checksums before VACUUM: %v", err)
	}
	want, err := content(db)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, db, "VACUUM")
	exec(t, db, "DELETE FROM x WHERE n = 3")
	exec(t, db, "PRAGMA wal_checkpoint(TRUNCATE)")
	if ok, err := has(path); err != nil || !ok {
		t.Fatalf("no checksums after VACUUM: %v", err)
	}
	exec(t, db, "INSERT INTO x (n, b) VALUES (3, ?)", bytes.Repeat([]byte{2}, 200))
	db.Close()
	if got, err := content(open2(t, path, wal)); err != nil || got != want {
		t.Errorf("other content after VACUUM, %v", err)
	}
}

// TestCheckLog damages every frame of a log.
func TestCheckLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.db")
	db := open2(t, path, wal+"&_pragma=wal_autocheckpoint(0)")
	fill(t, db)
	log, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(path + "-shm")
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	check := func(log []byte) error {
		if err := os.WriteFile(other+"-wal", log, 0o600); err != nil {
			t.Fatal(err)
		}
		return CheckLog(other)
	}
	if err := check(log); err != nil {
		t.Error(err)
	}
	const frame = frameHeader + 4096
	for off := 100; off < len(log); off += frame {
		log[off] ^= 1
		err := check(log)
		log[off] ^= 1
		if late := off > len(log)-12*frame; !errors.Is(err, ErrLog) && !late {
			t.Errorf("a flip at byte %d of %d: %v", off, len(log), err)
		}
	}
	log[9] ^= 1
	if err := check(log); !errors.Is(err, ErrLog) {
		t.Errorf("a wrong header: %v", err)
	}
	log[9] ^= 1
	// What a loss of power can leave: the last frames are missing or wrong.
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
	if err := os.WriteFile(other+"-shm", index, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := check(log); err != nil {
		t.Error(err)
	}
	for _, n := range []int{logHeader, len(log) / 2, len(log) - 1} {
		if err := check(log[:n]); !errors.Is(err, ErrLog) {
			t.Errorf("a log cut to %d of %d bytes, with its index: %v", n, len(log), err)
		}
	}
	if err := CheckLog(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

func has(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return Has(f)
}
