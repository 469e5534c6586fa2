package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecret checks that the secret stays the same, that only its owner can read it, and that
// a damaged secret is not replaced silently.
func TestSecret(t *testing.T) {
	dir := t.TempDir()
	first, err := Secret(dir)
	if err != nil || first == ([32]byte{}) {
		t.Fatalf("%x, %v", first, err)
	}
	if again, err := Secret(dir); err != nil || again != first {
		t.Errorf("%x, %v; want %x", again, err, first)
	}
	if other, err := Secret(t.TempDir()); err != nil || other == first {
		t.Errorf("another agent has %x, %v", other, err)
	}
	path := filepath.Join(dir, SecretFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Secret(dir); err == nil || !strings.Contains(err.Error(), "64 hexadecimal digits") {
		t.Errorf("damaged: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Secret(dir); err == nil || !strings.Contains(err.Error(), "others can read it") {
		t.Errorf("readable by others: %v", err)
	}
}
