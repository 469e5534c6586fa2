package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLinks checks that dead links, dead anchors and pictures from other sites are errors.
func TestLinks(t *testing.T) {
	for name, x := range map[string]struct{ text, problem string }{
		"good":    {"# Start\n\n[page](docs/README.md#a-part), [own](#start), [file](LICENSE), [folder](docs)\n", ""},
		"file":    {"# Start\n\n[page](docs/none.md)\n", "README.md: dead link docs/none.md"},
		"anchor":  {"# Start\n\n[page](docs/README.md#none)\n", "docs/README.md has no heading #none"},
		"own":     {"# Start\n\n[page](#begin)\n", "README.md has no heading #begin"},
		"outside": {"# Start\n\n[page](../x.md)\n", "leaves the repository"},
		"picture": {"# Start\n\n![x](https://example.org/x.png)\n", "is outside of the repository"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range map[string]string{
				"README.md": x.text, "CHANGELOG.md": "# Changes\n", "CONTRIBUTING.md": "# Contributing\n", "LICENSE": "free\n",
				"docs/README.md": "# Docs\n\n## A part\n\n[start](../README.md)\n", "papers/README.md": "# Papers\n",
			} {
				to := filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			n, err := check(root)
			if x.problem == "" && (err != nil || n != 5) {
				t.Errorf("%d pages, %v", n, err)
			}
			if x.problem != "" && (err == nil || !strings.Contains(err.Error(), x.problem)) {
				t.Errorf("%v, want %q", err, x.problem)
			}
		})
	}
}
