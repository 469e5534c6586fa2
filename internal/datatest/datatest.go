// Package datatest finds the real load data for tests. The data is not part of the repository.
package datatest

import (
	"os"
	"path/filepath"
	"testing"
)

// Root returns the folder of shared data. This is LOADSTAR_DATA, or by default shared/data
// next to the repository. If the folder does not exist, Root skips the test, but in CI the
// test fails.
func Root(t testing.TB) string {
	t.Helper()
	root := os.Getenv("LOADSTAR_DATA")
	if root == "" {
		root = filepath.Join(Repository(t), "..", "shared", "data")
	}
	if _, err := os.Stat(root); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("the load data is missing: %v", err)
		}
		t.Skip("no load data here")
	}
	return root
}

// Repository returns the folder of the repository.
func Repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "LICENSE")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("the test does not run inside the repository")
		}
		dir = parent
	}
}
