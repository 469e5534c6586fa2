//go:build linux

package faultfs

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	_ "modernc.org/sqlite" // the driver sqlite

	"loadstar/internal/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Child {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// disk returns a server with one disk, and the disk's mount point.
func disk(t *testing.T) (*Server, string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a process")
	}
	if err := Available(); err != nil {
		t.Skip("skipped:", err)
	}
	at, folder := filepath.Join(t.TempDir(), "disk"), filepath.Join(t.TempDir(), "folder")
	s, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.New(folder, at); err != nil {
		t.Fatal(err)
	}
	return s, at
}

func put(t *testing.T, path, text string, sync bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	testkit.Must(t, err)
	_, err = f.WriteString(text)
	testkit.Must(t, err)
	if sync {
		testkit.Must(t, f.Sync())
	}
	testkit.Must(t, f.Close())
}

func syncDir(t *testing.T, path string) {
	t.Helper()
	d, err := os.Open(path)
	testkit.Must(t, err)
	testkit.Must(t, d.Sync())
	testkit.Must(t, d.Close())
}

// cut cuts the power with the first seed that causes the wanted kind of loss.
func cut(t *testing.T, s *Server, at, kind string, strict bool) {
	t.Helper()
	for seed := uint64(0); ; seed++ {
		d := &Disk{}
		d.choose(seed)
		if d.lost.Kind == kind && d.lost.Strict == strict {
			_, err := s.Cut(at, seed)
			testkit.Must(t, err)
			return
		}
	}
}

func has(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "none"
	}
	return string(text)
}

// TestForgotten checks that a program that syncs keeps its data, and that one that omits a sync
// loses data.
func TestForgotten(t *testing.T) {
	s, at := disk(t)
	name := func(n string) string { return filepath.Join(at, n) }
	for _, strict := range []bool{false, true} {
		for _, kind := range []string{"all", "prefix", "torn"} {
			put(t, name("kept"), "old", true)
			syncDir(t, at)
			put(t, name("kept"), "new", true)
			cut(t, s, at, kind, strict)
			if got := has(name("kept")); got != "new" {
				t.Errorf("%s: a synced file has %q", kind, got)
			}
		}
		put(t, name("kept"), "unsynced", false)
		put(t, name("gone"), "never synced", false)
		cut(t, s, at, "all", strict)
		if got := has(name("kept")); got != "new" {
			t.Errorf("an overwritten file has %q, want what was synced", got)
		}
		if got := has(name("gone")); got != "none" {
			t.Errorf("a file that was never synced has %q", got)
		}
	}
}

// TestNames checks which renames, deletions and folders survive.
func TestNames(t *testing.T) {
	s, at := disk(t)
	name := func(n string) string { return filepath.Join(at, n) }
	put(t, name("a"), "1", true)
	put(t, name("b"), "b", true)
	testkit.Must(t, os.Mkdir(name("empty"), 0o700))
	syncDir(t, at)
	replace := func() {
		put(t, name("a.new"), "2", true)
		testkit.Must(t, os.Rename(name("a.new"), name("a")))
	}
	replace()
	testkit.Must(t, os.Remove(name("b")))
	testkit.Must(t, os.Remove(name("empty")))
	testkit.Must(t, os.Mkdir(name("sub"), 0o700))
	put(t, name("sub/c"), "c", true)
	syncDir(t, name("sub"))
	cut(t, s, at, "all", true)
	for n, want := range map[string]string{"a": "1", "a.new": "2", "b": "b", "sub/c": "none"} {
		if got := has(name(n)); got != want {
			t.Errorf("without a sync of the folder, %s has %q, want %q", n, got, want)
		}
	}
	if _, err := os.Stat(name("empty")); err != nil {
		t.Error(err)
	}

	replace()
	put(t, name("other"), "x", true) // ext4 writes the whole journal
	cut(t, s, at, "all", false)
	if got := has(name("a")); got != "2" {
		t.Errorf("after a sync of a later file, a journal lost a rename: %q", got)
	}
	put(t, name("a.new"), "3", false)
	testkit.Must(t, os.Rename(name("a.new"), name("a")))
	syncDir(t, at)
	cut(t, s, at, "all", true)
	if got := has(name("a")); got != "" {
		t.Errorf("a file that was renamed and not synced has %q, want nothing", got)
	}
}

// TestTorn checks that a torn cut keeps some pages and loses others.
func TestTorn(t *testing.T) {
	s, at := disk(t)
	path := filepath.Join(at, "pages")
	old, fresh := strings.Repeat("o", 64*page), strings.Repeat("n", 64*page)
	put(t, path, old, true)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	testkit.Must(t, err)
	_, err = f.WriteString(fresh)
	testkit.Must(t, err)
	testkit.Must(t, f.Close())
	cut(t, s, at, "torn", false)
	got := has(path)
	if n := strings.Count(got, "n"); len(got) != len(old) || n == 0 || n == len(old) || n%page != 0 {
		t.Errorf("%d of %d bytes are new", n, len(got))
	}
}

// TestFaults checks a full, a read-only and a slow disk.
func TestFaults(t *testing.T) {
	s, at := disk(t)
	path := filepath.Join(at, "x")
	put(t, path, "1234", true)
	testkit.Must(t, s.Set(at, Fault{Full: true, Room: 3}))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	testkit.Must(t, err)
	defer f.Close()
	if n, err := f.WriteString("abcde"); n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
	over, err := os.OpenFile(path, os.O_WRONLY, 0)
	testkit.Must(t, err)
	if _, err := over.WriteString("4321"); err != nil {
		t.Errorf("a full disk refuses to overwrite: %v", err)
	}
	testkit.Must(t, over.Close())
	if err := os.WriteFile(filepath.Join(at, "y"), []byte("y"), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("created a file: %v", err)
	}
	var st syscall.Statfs_t
	if testkit.Must(t, syscall.Statfs(at, &st)); st.Bavail != 0 {
		t.Errorf("a full disk has %d free blocks", st.Bavail)
	}
	testkit.Must(t, s.Set(at, Fault{ReadOnly: true}))
	if _, err := f.WriteString("x"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("wrote to a read-only disk: %v", err)
	}
	if err := os.Remove(path); !errors.Is(err, syscall.EROFS) {
		t.Errorf("deleted from a read-only disk: %v", err)
	}
	testkit.Must(t, s.Set(at, Fault{Slow: 50 * time.Millisecond}))
	begin := time.Now()
	if _, err := f.WriteString("x"); err != nil || time.Since(begin) < 50*time.Millisecond {
		t.Errorf("a slow write took %s: %v", time.Since(begin), err)
	}
	testkit.Must(t, s.Set(at, Fault{}))
	if got := has(path); got != "4321abcx" {
		t.Errorf("got %q", got)
	}
}

// TestEngines checks that SQLite with its shared memory and bbolt with its mapped file work
// on a disk, and keep every committed transaction.
func TestEngines(t *testing.T) {
	s, at := disk(t)
	for seed := range uint64(12) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(at, "x.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
		testkit.Must(t, err)
		_, err = db.Exec("CREATE TABLE IF NOT EXISTS x (n INTEGER PRIMARY KEY, b BLOB)")
		testkit.Must(t, err)
		b, err := bolt.Open(filepath.Join(at, "x.bolt"), 0o600, nil)
		testkit.Must(t, err)
		var rows int
		testkit.Must(t, db.QueryRow("SELECT count(*) FROM x").Scan(&rows))
		if rows != int(seed)*10 {
			t.Fatalf("%d rows after %d cuts", rows, seed)
		}
		for i := range 10 {
			blob := bytes.Repeat([]byte{byte(i)}, 3000)
			_, err = db.Exec("INSERT INTO x (b) VALUES (?)", blob)
			testkit.Must(t, err)
			testkit.Must(t, b.Update(func(tx *bolt.Tx) error {
				k, err := tx.CreateBucketIfNotExists([]byte("k"))
				if err != nil {
					return err
				}
				if n := k.Stats().KeyN; n != rows+i {
					return fmt.Errorf("%d keys, want %d", n, rows+i)
				}
				return k.Put(fmt.Append(nil, seed, i), blob)
			}))
		}
		// All data of the closed files is synced, except for writes during closing.
		testkit.Must(t, db.Close())
		testkit.Must(t, b.Close())
		loss, err := s.Cut(at, seed)
		testkit.Must(t, err)
		t.Log(loss)
	}
}
