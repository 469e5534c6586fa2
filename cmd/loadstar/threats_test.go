package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestThreatModel checks that the tests and attacks in docs/threat-model.md exist, and that the
// page names every attack.
func TestThreatModel(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs/threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests, attacks := map[string]bool{}, map[string]bool{}
	function, id := regexp.MustCompile(`(?m)^func (Test\w+)\(`), regexp.MustCompile(`\b(?:ID|id): +"([A-Z]+\d+[a-z]?)"`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			if d != nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
				return filepath.SkipDir
			}
			return err
		}
		attack := strings.Contains(filepath.ToSlash(path), "rig/attack/")
		if !attack && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		if attack {
			for _, m := range id.FindAllStringSubmatch(string(text), -1) {
				attacks[m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(attacks) < 30 || len(tests) < 300 {
		t.Fatalf("only %d attacks and %d tests were found", len(attacks), len(tests))
	}
	// make attacks does not carry out M10 and M12, and reports this.
	attacks["M10"], attacks["M12"] = true, true
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`\b((?:[CHMLNPSX]|SL)\d+[a-z]?)\b`).FindAllStringSubmatch(string(page), -1) {
		named[m[1]] = true
		if !attacks[m[1]] {
			t.Errorf("docs/threat-model.md names the attack %s, which does not exist", m[1])
		}
	}
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		if !tests[m[1]] {
			t.Errorf("docs/threat-model.md names %s, which does not exist", m[1])
		}
	}
	for a := range attacks {
		if !named[a] {
			t.Errorf("docs/threat-model.md does not name the attack %s", a)
		}
	}
}
