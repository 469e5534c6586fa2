package testkit

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// requireData names the environment variable that makes tests fail, rather than be skipped, if
// their data is missing. CI sets it on machines that have the data.
const requireData = "LOADSTAR_DATA_REQUIRED"

// rootPath returns the folder of the large groups: LOADSTAR_DATA, which may be relative to the
// repository, or shared/data next to the repository by default.
func rootPath(t testing.TB) string {
	root := cmp.Or(os.Getenv("LOADSTAR_DATA"), "../shared/data")
	if !filepath.IsAbs(root) {
		root = filepath.Join(Repository(t), root)
	}
	return root
}

// DataGroup returns the folder of one large group. If it does not exist, DataGroup skips the
// test, or fails it if [requireData] is set.
func DataGroup(t testing.TB, name string) string {
	t.Helper()
	return existing(t, filepath.Join(rootPath(t), name), "data "+name)
}

// existing returns a folder if it exists.
func existing(t testing.TB, dir, what string) string {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		missing := "the " + what + " is missing; get it with loadstar data fetch and set LOADSTAR_DATA"
		if os.Getenv(requireData) != "" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return dir
}

var groupOf = regexp.MustCompile(`files: \[([^/]*)/`)

// Dataset returns the path of the description datasets/NAME.yaml and the folder to which its
// files are relative. If its group is missing, Dataset skips or fails the test like
// [DataGroup].
func Dataset(t testing.TB, name string) (description, root string) {
	t.Helper()
	description = filepath.Join(Repository(t), "datasets", name+".yaml")
	text, err := os.ReadFile(description)
	if err != nil {
		t.Fatal(err)
	}
	group := groupOf.FindSubmatch(text)
	if group == nil {
		t.Fatalf("%s names no group", description)
	}
	return description, filepath.Dir(DataGroup(t, string(group[1])))
}

// Sample returns the folder of the sample, for tests for which any real readings suffice.
func Sample(t testing.TB) string { return filepath.Join(Repository(t), "datasets", "sample") }

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
