package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	put := func(text string, err error) error {
		return Write(path, func(f *os.File) error {
			if _, werr := f.WriteString(text); werr != nil {
				return werr
			}
			return err
		})
	}
	if err := put("one", nil); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	if err := put("two", boom); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "one" {
		t.Errorf("a failed write left %q, %v", got, err)
	}
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("three"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "one" {
		t.Errorf("before it is finished, the file is %q", got)
	}
	if err := f.Finish(nil); err != nil {
		t.Fatal(err)
	}
	f.Discard()
	if got, _ := os.ReadFile(path); string(got) != "three" {
		t.Errorf("got %q", got)
	}
	if f.Finish(nil) == nil {
		t.Error("finished twice")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
}
