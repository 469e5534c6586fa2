package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStartOnFullDisk checks that a server that starts on a full disk reports that the disk is
// full. SQLite's own message is only "disk I/O error (4874)".
func TestStartOnFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skip("cannot mount a small disk: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	at := "sqlite:" + filepath.Join(dir, "ledger.db")
	l := open(t, at)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rest"), make([]byte, 4<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	l, err := Open(t.Context(), at)
	if err == nil {
		l.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("%v", err)
	}
}
