package disk

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("mapped text"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := MapFile(f, 6)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if string(b) != "mapped" {
		t.Errorf("the mapping has %q", b)
	}
	if err := Unmap(b); err != nil {
		t.Error(err)
	}
	if _, err := MapFile(f, 6); err == nil {
		t.Error("a closed file was mapped")
	}
}

func TestMemory(t *testing.T) {
	b, err := MapMemory(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != 8<<20 || b[0] != 0 || b[len(b)-1] != 0 {
		t.Errorf("%d bytes, from %d to %d", len(b), b[0], b[len(b)-1])
	}
	b[len(b)-1] = 1
	if err := Unmap(b); err != nil {
		t.Error(err)
	}
}
