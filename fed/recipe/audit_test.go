package recipe

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAudit checks that every setting and file in the fidelity table exists, and that the value
// of a setting is one of its choices.
func TestAudit(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "papers", "audit.md"))
	if err != nil {
		t.Fatal(err)
	}
	choices := map[string]map[string]bool{}
	for _, a := range algorithms {
		for _, s := range a.allSettings() {
			if choices[s.path] == nil {
				choices[s.path] = map[string]bool{}
			}
			for _, c := range s.choices {
				choices[s.path][c] = true
			}
		}
	}
	settings, files := 0, 0
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(m[1], "/") {
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(m[1]))); err != nil {
				t.Error(err)
			}
			files++
			continue
		}
		path, value, given := strings.Cut(m[1], ": ")
		known, ok := choices[path]
		if !ok {
			t.Errorf("%s is not a setting of any algorithm", path)
		}
		if given && len(known) > 0 && !known[value] {
			t.Errorf("%s is not a value of %s", value, path)
		}
		settings++
	}
	if settings < 15 || files < 15 {
		t.Errorf("only %d settings and %d files", settings, files)
	}
}
