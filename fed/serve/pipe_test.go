//go:build unix

package serve

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A folder from an untrusted source may contain a named pipe in place of a file. The pipe must
// not block.
func TestPipe(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{planName, ScalingName} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan [2]error, 1)
	go func() {
		_, first := readFile(filepath.Join(dir, planName), maxPlan, nil)
		_, _, second := (&Folder{dir: dir}).file(ScalingName)
		ended <- [2]error{first, second}
	}()
	select {
	case err := <-ended:
		if err[0] == nil || err[1] == nil {
			t.Error("a named pipe was read", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a named pipe blocks")
	}
}
