package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/series/table"
)

// contentSum returns the SHA-256 of a file's contents before compression.
func contentSum(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := table.Unpack(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, plain); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func TestSampleInRepository(t *testing.T) {
	size := int64(0)
	for name, want := range sample.sums {
		path := filepath.Join(testkit.Repository(t), "datasets", "sample", name)
		if got := contentSum(t, path); got != want {
			t.Errorf("%s has contents %s, want %s", path, got, want)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 1e6 {
		t.Errorf("the sample has %d bytes; it must stay below 1 MB", size)
	}
}

// TestSample makes the sample again and compares the compressed bytes with the repository's
// file.
func TestSample(t *testing.T) {
	if testing.Short() {
		t.Skip("reads all data of a group")
	}
	to := t.TempDir()
	files, err := sample.Convert(testkit.DataGroup(t, cambridge.Folder), to)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		got, err := os.ReadFile(filepath.Join(to, "sample", f.Name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(testkit.Repository(t), "datasets", "sample", f.Name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from the one in the repository; run make sample", f.Name)
		}
	}
}
