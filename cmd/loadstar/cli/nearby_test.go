package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestExplain(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"demo/dataset.yaml", "plans/plfl-head.yaml", "plans/fedavg.yaml", "plans/README.md", ".hidden/x"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"dmeo":                  "did you mean demo?",
		"plans/plfl-haed.yaml":  "did you mean plans/plfl-head.yaml?",
		"plans/scaffold.yaml":   "",
		"runs/my/run":           "",
		"plans/fedavg.yaml/sub": "",
	} {
		if got := hintAt(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	_, err := os.ReadFile("dmeo")
	if got := explain(err).Error(); got != "open dmeo: no such file or directory; did you mean demo?" {
		t.Error(got)
	}
	if other := errors.New("other"); explain(other) != other || explain(nil) != nil {
		t.Error("an error that is about no file is changed")
	}
}
