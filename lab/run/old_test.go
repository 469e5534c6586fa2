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

// TestOlderFolders checks that the results of an older version, whose MASE may refer to
// another forecast, are refused with what to do, and that the table of a run that it began
// can be read.
func TestOlderFolders(t *testing.T) {
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "summary.json"), `{"plan":"p","mase":{"mean":1,"median":1,"below_one":0.5},"mae":2}`)
	if _, err := ReadSummary(dir); err == nil || !strings.Contains(err.Error(), "older version of loadstar, whose MASE is not the relative MAE of this version: run it again") {
		t.Errorf("the summary of an older version: %v", err)
	}
	writeText(t, filepath.Join(dir, "clients.csv"), "unique_id,mean_kw,std_kw,train_examples,targets,loss,mae,rmse,nmae,mape,smape,mase\n")
	if _, err := Read[Client](dir, "clients"); err == nil || !strings.Contains(err.Error(), "another version of loadstar; run it again") {
		t.Errorf("the clients of an older version: %v", err)
	}
	writeText(t, filepath.Join(dir, "evaluations.csv"), "round,unique_id,loss,mae,rmse,mase\n10,a,1,2,3,0.5\n")
	rows, err := Read[Evaluation](dir, "evaluations")
	if err != nil || len(rows) != 1 || rows[0].RelativeMAE != 0.5 {
		t.Errorf("evaluations %v, %v", rows, err)
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
