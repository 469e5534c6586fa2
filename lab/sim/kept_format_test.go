package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/internal/stateformat"
)

// TestNewerFormats checks that a file and a snapshot with the format number of a newer
// program are rejected.
func TestNewerFormats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept.bin")
	initial := fill(3, 1)
	s := newStore(t, path, 2, initial, 0)
	snapshot, err := s.Commit()
	if err != nil {
		t.Fatal(err)
	}
	wantNewer := func(what string, err error, newest int) {
		t.Helper()
		want := fmt.Sprintf("written by a newer Loadstar (format %d, this one reads up to %d): upgrade", newest+1, newest)
		if !errors.Is(err, stateformat.ErrNewer) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}

	snapshot[len(snapshotMagic)]++
	end := len(snapshot) - 4
	binary.LittleEndian.PutUint32(snapshot[end:], crc32.Checksum(snapshot[:end], castagnoli))
	wantNewer("snapshot", s.Restore(snapshot), snapshotFormat)

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(fileMagic)]++
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = OpenKept(path, 2, len(initial), initial, 0)
	wantNewer("file", err, fileFormat)
}
