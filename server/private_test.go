package server

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/server/blob"
	"loadstar/server/sqlstore"
)

// TestPrivateFiles checks that only the owner can read the ledger, the blobs and a backup, even
// if the folders existed before with permissions for everybody.
func TestPrivateFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"blobs", "blobs/aa"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	testkit.Must(t, os.Chmod(dir, 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "ledger.db"), nil, 0o644))
	newStation(t, func(c *Config) { c.Dir = dir })
	for _, name := range []string{"ledger.db", "ledger.db-wal", "ledger.db-shm", "blobs", "lock"} {
		info, err := os.Stat(filepath.Join(dir, name))
		testkit.Must(t, err)
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("%s has mode %v", name, mode)
		}
	}
	store, err := blob.Files(filepath.Join(dir, "blobs"))
	testkit.Must(t, err)
	hash, err := store.Put(t.Context(), []byte("weights"))
	testkit.Must(t, err)
	info, err := os.Stat(filepath.Join(dir, "blobs", filepath.FromSlash(blob.Name(hash))))
	testkit.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("a blob has mode %v", info.Mode().Perm())
	}
	// A killed backup has left a snapshot behind.
	left := filepath.Join(dir, "backup", "ledger.db")
	testkit.Must(t, os.MkdirAll(filepath.Dir(left), 0o755))
	testkit.Must(t, os.WriteFile(left, []byte("old"), 0o644))
	var file bytes.Buffer
	testkit.Must(t, Backup(t.Context(), dir, &file))
	if _, err := os.Stat(filepath.Dir(left)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the backup left its folder: %v", err)
	}
	names := ""
	for r := tar.NewReader(&file); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		names += h.Name + " "
		if h.Mode != 0o600 {
			t.Errorf("%s has mode %o in the backup", h.Name, h.Mode)
		}
	}
	if !strings.Contains(names, "ledger.db ") || !strings.Contains(names, "pki/") {
		t.Errorf("the backup has %s", names)
	}
}

// TestBackupDoesNotMigrate checks that the ledger of an older server and its copy in the backup
// keep their schema, because an operator may have to return to the older server. The oldest
// schema, 0, has no tables.
func TestBackupDoesNotMigrate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger.db")
	l, err := sqlstore.OpenForBackup(t.Context(), path) // creates only the table of versions
	testkit.Must(t, err)
	testkit.Must(t, l.Close())
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "pki"), 0o700))
	var file bytes.Buffer
	testkit.Must(t, Backup(t.Context(), dir, &file))
	if v := schemaOf(t, path); v != 0 {
		t.Errorf("the ledger has schema %d after a backup", v)
	}
	copied := filepath.Join(t.TempDir(), "ledger.db")
	for r := tar.NewReader(&file); ; {
		h, err := r.Next()
		testkit.Must(t, err)
		if h.Name == "ledger.db" {
			data, err := io.ReadAll(r)
			testkit.Must(t, err)
			testkit.Must(t, os.WriteFile(copied, data, 0o600))
			break
		}
	}
	if v := schemaOf(t, copied); v != 0 {
		t.Errorf("the backup has schema %d", v)
	}
}

func schemaOf(t *testing.T, path string) int64 {
	t.Helper()
	store, schema, err := sqlstore.OpenToLook(t.Context(), "sqlite:"+path)
	testkit.Must(t, err)
	testkit.Must(t, store.Close())
	return schema.Version
}
