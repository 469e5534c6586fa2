package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestOtherTable checks that a table with the columns of another version is refused with
// advice.
func TestOtherTable(t *testing.T) {
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "clients.csv"), "unique_id,mean_kw,std_kw,train_examples,targets,loss,mae,rmse,nmae,mape,smape,mase\n")
	if _, err := Read[Client](dir, "clients"); err == nil || !strings.Contains(err.Error(), "another version of loadstar; run it again") {
		t.Errorf("the clients of another version: %v", err)
	}
}

// TestUpgrade checks that a plan of an older version is compared after its upgrade.
func TestUpgrade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f, err := Create(dir, []byte("old"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	upgrade := func(plan []byte) ([]byte, error) { return []byte("upgraded " + string(plan)), nil }
	if _, err := Reopen(dir, []byte("new"), upgrade); err == nil || !strings.Contains(err.Error(), "a run of a different plan") {
		t.Errorf("a different plan: %v", err)
	}
	for _, plan := range []string{"old", "upgraded old"} {
		f, err := Reopen(dir, []byte(plan), upgrade)
		if err != nil {
			t.Fatalf("%s: %v", plan, err)
		}
		if err := f.OpenTables(Offsets{}); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
