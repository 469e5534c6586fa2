package recipe

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"loadstar/fed"
)

var rewrite = flag.Bool("rewrite", false, "regenerate the reference in docs/plans.md")

// mark starts the part of docs/plans.md that is generated from the registry.
const mark = "<!-- Generated from the registry: go test ./fed/recipe -run Reference -rewrite -->\n"

func TestReference(t *testing.T) {
	const path = "../../docs/plans.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(text), mark)
	if !ok {
		t.Fatalf("%s has no line %s", path, mark)
	}
	want := []byte(head + mark + reference(t))
	if *rewrite {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(text, want) {
		t.Errorf("%s differs from the registry: run go test ./fed/recipe -run Reference -rewrite", path)
	}
}

// reference returns the generated part of docs/plans.md: tables of the algorithms and of
// all settings.
func reference(t *testing.T) string {
	var b strings.Builder
	b.WriteString("\n## Algorithms\n\n| algorithm | description | source |\n|---|---|---|\n")
	defaults := map[string]*fed.Plan{}
	for _, a := range algorithms {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", a.name, a.about, a.paper)
		p, err := Read([]byte("algorithm: " + a.name))
		if err != nil {
			t.Fatal(err)
		}
		defaults[a.name] = p
	}
	// For each setting, list the algorithms that have it with at least one of their
	// choices.
	has := map[string][]string{}
	for _, p := range somePlans(t) {
		for _, path := range find(p.Algorithm).pathsOf(p) {
			if !slices.Contains(has[path], p.Algorithm) {
				has[path] = append(has[path], p.Algorithm)
			}
		}
	}
	byPath := map[string]setting{}
	for _, a := range algorithms {
		for _, s := range a.allSettings() {
			byPath[s.path] = s
		}
	}
	for _, section := range []string{"", "model", "client", "server", "schedule", "evaluate", "simulate"} {
		title := "Top-level settings"
		if section != "" {
			title = "Settings in `" + section + "`"
		}
		fmt.Fprintf(&b, "\n## %s\n\n| setting | meaning | permitted values | default | algorithms |\n|---|---|---|---|---|\n", title)
		for _, path := range paths {
			s, name, ok := strings.Cut(path, ".")
			if !ok {
				s, name = "", path
			}
			if k := byPath[path]; s == section {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, k.about, permitted(k), defaultsOf(k, has[k.path], defaults), algorithmsOf(has[k.path]))
			}
		}
	}
	b.WriteString("\n## Defaults of the model `dense`\n\nWith `model: {name: dense}` and `algorithm: fedavg`, these defaults differ.\n\n| setting | default |\n|---|---|\n")
	dense, err := Read([]byte("algorithm: fedavg\nmodel: {name: dense}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range find("fedavg").pathsOf(dense) {
		v := field(dense, path).Interface()
		if path == "model.name" || reflect.DeepEqual(v, field(defaults["fedavg"], path).Interface()) {
			continue
		}
		fmt.Fprintf(&b, "| `%s` | `%v` |\n", path, v)
	}
	return b.String()
}

// permitted describes the permitted values of a setting.
func permitted(k setting) string {
	var all []string
	for _, a := range algorithms {
		for _, c := range choicesOf(a, k.path) {
			if c != "" && !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	if all != nil {
		return alternatives(all)
	}
	return k.must.say
}

// defaultsOf returns the default that most algorithms have for a setting, followed by the
// other defaults and their algorithms.
func defaultsOf(k setting, has []string, plans map[string]*fed.Plan) string {
	by := map[string][]string{}
	var values []string
	for _, name := range has {
		p := plans[name]
		if !slices.Contains(find(name).pathsOf(p), k.path) {
			continue // the algorithm's default plan does not have the setting
		}
		text, err := yaml.Marshal(field(p, k.path).Interface())
		if err != nil {
			panic(err)
		}
		v := strings.TrimSpace(string(text))
		if k.path == "name" || k.path == "algorithm" {
			continue
		}
		if v == `""` || v == "[]" {
			v = "none"
		}
		if by[v] == nil {
			values = append(values, v)
		}
		by[v] = append(by[v], name)
	}
	slices.SortStableFunc(values, func(a, b string) int { return len(by[b]) - len(by[a]) })
	if len(values) == 1 && values[0] == "none" {
		return ""
	}
	for i, v := range values {
		values[i] = "`" + v + "`"
		if i > 0 {
			values[i] += " (" + strings.Join(by[v], ", ") + ")"
		}
	}
	return strings.Join(values, "; ")
}

func algorithmsOf(has []string) string {
	var not []string
	for _, name := range Names() {
		if !slices.Contains(has, name) {
			not = append(not, name)
		}
	}
	switch {
	case len(not) == 0:
		return "all"
	case len(not) <= 4:
		return "all except " + strings.Join(not, ", ")
	}
	return strings.Join(has, ", ")
}
