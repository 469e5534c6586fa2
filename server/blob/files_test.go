package blob

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFilesSweep(t *testing.T) {
	dir := t.TempDir()
	s, err := Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	hash := put(t, s, []byte("x"))
	path := files{dir}.path(hash)
	if rel, _ := filepath.Rel(dir, path); rel != filepath.Join(hash[:2], hash[2:4], hash) {
		t.Errorf("kept at %s", rel)
	}
	before := time.Now().Add(-2 * time.Hour)
	old, young := filepath.Join(filepath.Dir(path), "."+hash+".1"), filepath.Join(filepath.Dir(path), "."+hash+".2")
	for _, p := range []string{old, young} {
		if err := os.WriteFile(p, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{old, path} {
		if err := os.Chtimes(p, before, before); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = Files(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("what a killed process left is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("what another process may be writing: %v", err)
	}
	if got, err := s.Get(t.Context(), hash); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestFilesErrors(t *testing.T) {
	if _, err := Files("files_test.go"); err == nil {
		t.Error("a file as a folder")
	}
	dir := t.TempDir()
	s, err := Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	hash := put(t, s, []byte("x"))
	path := files{dir}.path(hash)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), hash); err == nil || strings.Contains(err.Error(), "not found") {
		t.Errorf("a folder instead of a blob: %v", err)
	}
	if _, err := s.Put(t.Context(), []byte("x")); err == nil {
		t.Error("put where a folder is")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
