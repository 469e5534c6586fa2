package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLinks checks that dead links, dead anchors and pictures from other sites are errors, and
// that valid links lead to the pages of the site.
func TestLinks(t *testing.T) {
	for name, x := range map[string]struct{ text, problem string }{
		"good":    {"# Start\n\n[page](docs/README.md#a-part), [own](#start), [file](LICENSE)\n", ""},
		"file":    {"# Start\n\n[page](docs/none.md)\n", "dead link docs/none.md"},
		"anchor":  {"# Start\n\n[page](docs/README.md#none)\n", "docs/README.md has no heading #none"},
		"outside": {"# Start\n\n[page](../x.md)\n", "leaves the repository"},
		"picture": {"# Start\n\n![x](https://example.org/x.png)\n", "is outside of the repository"},
	} {
		t.Run(name, func(t *testing.T) {
			root, out := t.TempDir(), filepath.Join(t.TempDir(), "site")
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
			s := site{root: root, out: out, pages: map[string]*page{}}
			err := s.run()
			if x.problem != "" {
				if err == nil || !strings.Contains(err.Error(), x.problem) {
					t.Errorf("%v, want %q", err, x.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			page, err := os.ReadFile(filepath.Join(out, "index.html"))
			for _, want := range []string{`href="docs/index.html#a-part"`, `href="#start"`, `href="LICENSE"`} {
				// A link to the page itself may contain the name of the page.
				if !strings.Contains(string(page), want) && !strings.Contains(string(page), strings.Replace(want, `"#`, `"index.html#`, 1)) {
					t.Errorf("no %s: %v", want, err)
				}
			}
		})
	}
}
