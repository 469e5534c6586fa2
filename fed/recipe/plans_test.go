package recipe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/nn/kernel"
)

// TestCommittedPlans checks that each example plan is valid and named like its file, and that
// every algorithm has an example plan.
func TestCommittedPlans(t *testing.T) {
	files, err := filepath.Glob("../../plans/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	has := map[string]bool{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Read(text)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		has[p.Algorithm] = true
		if name := strings.TrimSuffix(filepath.Base(path), ".yaml"); p.Name != name {
			t.Errorf("%s has the name %s, want that of the file", path, p.Name)
		}
		c, err := Compose(p, 30)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		c.NewTrainer(kernel.Available()[0])
		if _, err := Frame(p, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, name := range Names() {
		if !has[name] {
			t.Errorf("plans/ has no example for %s", name)
		}
	}
}
