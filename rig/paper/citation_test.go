package paper

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"loadstar/lab/experiment"
)

// citation is an entry of papers/README.md.
type citation struct {
	title   string
	authors []string
}

// oneLine replaces every run of white space by one space.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func mustRead(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// citations reads the entries of papers/README.md by the names of the papers.
func citations(t *testing.T) map[string]citation {
	t.Helper()
	entry := regexp.MustCompile(`- \*\*(\w+)\*\*: (.+?)\. \*(.+?)\.\*`)
	all := map[string]citation{}
	for _, m := range entry.FindAllStringSubmatch(oneLine(mustRead(t, filepath.Join(papers, "README.md"))), -1) {
		all[m[1]] = citation{m[3], strings.Split(m[2], ", ")}
	}
	if len(all) != len(Names(papers)) {
		t.Fatalf("%d citations of %d papers: %v", len(all), len(Names(papers)), all)
	}
	return all
}

// TestCitations checks that CITATION.cff cites the papers as papers/README.md does, and that
// README.md names them.
func TestCitations(t *testing.T) {
	all := citations(t)
	var file struct {
		Version string `yaml:"cff-version"`
		Message string
		Title   string
		License string
		Authors []struct{ Name string }

		References []struct {
			Type, Title string
			Authors     []struct {
				Given  string `yaml:"given-names"`
				Family string `yaml:"family-names"`
			}
		}
	}
	root := filepath.Dir(papers)
	if err := yaml.Unmarshal([]byte(mustRead(t, filepath.Join(root, "CITATION.cff"))), &file); err != nil {
		t.Fatal(err)
	}
	// Version 1.2.0 requires these keys.
	if file.Version != "1.2.0" || file.Message == "" || file.Title == "" || len(file.Authors) == 0 || file.License != "Apache-2.0" || len(file.References) != len(all) {
		t.Errorf("CITATION.cff: %+v", file)
	}
	readme := oneLine(mustRead(t, filepath.Join(root, "README.md")))
	for name, c := range all {
		found := false
		for _, r := range file.References {
			var authors []string
			for _, a := range r.Authors {
				authors = append(authors, a.Given+" "+a.Family)
			}
			found = found || r.Type != "" && r.Title == c.title && slices.Equal(authors, c.authors)
		}
		if !found {
			t.Errorf("CITATION.cff has no reference with the title and the authors of %s: %+v", name, c)
		}
		for _, want := range []string{name, c.title} {
			if !strings.Contains(readme, want) {
				t.Errorf("README.md does not mention %s of %s", want, name)
			}
		}
	}
}

// TestCitationsOfTexts checks that title and authors are on the first page of a paper.
func TestCitationsOfTexts(t *testing.T) {
	texts, _ := filepath.Glob(filepath.Join(papers, "..", "..", "shared", "seeds", "*.txt")) // the pattern is valid
	if len(texts) == 0 {
		t.Skip("the texts of the papers are not here")
	}
	plain := strings.NewReplacer("č", "c", "ý", "y") // one text has no accents
	var pages []string
	for _, path := range texts {
		text := mustRead(t, path)
		pages = append(pages, plain.Replace(oneLine(text[:min(len(text), 2500)])))
	}
	for name, c := range citations(t) {
		if !slices.ContainsFunc(pages, func(page string) bool {
			// Some texts have titles in capital letters.
			if !strings.Contains(strings.ToLower(page), strings.ToLower(c.title)) {
				return false
			}
			return !slices.ContainsFunc(c.authors, func(a string) bool { return !strings.Contains(page, plain.Replace(a)) })
		}) {
			t.Errorf("no text begins with the title and the authors of %s: %+v", name, c)
		}
	}
}

// TestMap checks that the files, parts and claims in the tables of papers/README.md exist, and
// that the tables contain every claim.
func TestMap(t *testing.T) {
	_, text, _ := strings.Cut(mustRead(t, filepath.Join(papers, "README.md")), "\n## Where each part is\n")
	link := regexp.MustCompile(`\[([^]]+)\]\(([^)#]+)(#[^)]*)?\)`)
	for _, section := range strings.Split(text, "\n### ")[1:] {
		name, _, _ := strings.Cut(section, "\n")
		p, err := Open(filepath.Join(papers, name), false)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := readClaims(filepath.Join(papers, name))
		if err != nil {
			t.Fatal(err)
		}
		mapped := map[string]bool{}
		for _, m := range link.FindAllStringSubmatch(section, -1) {
			of, to := strings.Trim(m[1], "`"), m[2]
			if _, err := os.Stat(filepath.Join(papers, to)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			switch base := filepath.Base(to); {
			case base == "experiment.yaml":
				if !slices.ContainsFunc(p.Spec.Parts, func(part experiment.Part) bool { return part.Name == of }) || filepath.Dir(to) != name {
					t.Errorf("%s has no part %s", to, of)
				}
			case base == "README.md":
				mapped[of] = true
				if !slices.ContainsFunc(claims, func(c claim) bool { return c.ID == of }) || filepath.Dir(to) != name {
					t.Errorf("%s has no claim %s", to, of)
				}
			case base != of+".yaml":
				t.Errorf("%s: %s leads to %s", name, of, to)
			}
		}
		// Code is not linked, because the site would copy it to a place where Go treats it as
		// packages.
		code := regexp.MustCompile("`([a-z0-9/]+\\.go)`").FindAllStringSubmatch(section, -1)
		if len(code) == 0 {
			t.Errorf("%s: no code is named", name)
		}
		for _, m := range code {
			if _, err := os.Stat(filepath.Join(papers, "..", m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, c := range claims {
			if !mapped[c.ID] {
				t.Errorf("%s: the claim %s is not in the map", name, c.ID)
			}
		}
	}
}
