package paper

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loadstar/lab/experiment"
)

const claimsText = `# a comment
- id: first
  claim: PL is better | than FL.
  where: table 1
  test: >
    PL is clearly below
    FL.
  holds: clearly(v("table", "hog", "PL", "mae"), v("table", "hog", "FL", "mae"))
  figures: PL ${v("table", "hog", "PL", "mae")}
  before: not tested
  verdict: does not hold here # by hand

# between
- id: second
  claim: FL is better.
  where: table 1
  holds: lower(v("table", "hog", "FL", "mae"), v("table", "hog", "PL", "mae"))
  ruled_out: The rate.
`

const readmeText = `# A paper

Prose.

<!-- begin: runs -->
<!-- end -->
<!-- begin: results -->
old
<!-- end -->
<!-- begin: published -->
<!-- end -->
<!-- begin: claims -->
<!-- end -->
More prose.
`

// study writes the folder of a paper and opens it.
func study(t *testing.T) *Paper {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "test2020")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"experiment.yaml": "title: Test\nparts: [{name: table, title: A table, datasets: [hog], methods: [{name: FL, plan: {algorithm: fedavg}}]}]\n",
		"claims.yaml":     claimsText,
		"README.md":       readmeText,
		"published.tsv":   publishedHeader + "\nIV\tCalifornia\tFL\tMAE\t22.5\tkW\ta note\nIV\tCalifornia\tPL\tMAE\t\tkW\t\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	results := append(example().results, experiment.Result{Part: experiment.Meta, Figures: map[string]experiment.Figure{
		"runs": {7}, "gradients": {1234567}, "cpu_seconds": {5400}, "date": {20261116},
	}})
	for i := range results {
		results[i].Generated = results[i].Dataset == "robin"
	}
	for i := range results[:len(results)-1] {
		results[i].Figures["relative_mae_mean"] = experiment.Figure{1}
	}
	if err := WriteResults(dir, results); err != nil {
		t.Fatal(err)
	}
	p, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *Paper) text(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestVerify(t *testing.T) {
	p := study(t)
	difference, err := p.Verify(false)
	if !errors.Is(err, ErrDiffers) {
		t.Fatal(err)
	}
	for _, want := range []string{"test2020/claims.yaml, from line 11:", "-   verdict: does not hold here # by hand", "+   verdict: holds", "test2020/README.md, from line 6:"} {
		if !strings.Contains(difference, want) {
			t.Errorf("no %q in\n%s", want, difference)
		}
	}
	if p.text(t, "claims.yaml") != claimsText || p.text(t, "README.md") != readmeText {
		t.Error("a file changed without --write")
	}
	if _, err := p.Verify(true); err != nil {
		t.Fatal(err)
	}
	if difference, err := p.Verify(false); err != nil || difference != "" {
		t.Errorf("after writing: %v\n%s", err, difference)
	}
	want := strings.Replace(claimsText, "does not hold here # by hand", "holds", 1) + "  verdict: does not hold here\n"
	if got := p.text(t, "claims.yaml"); got != want {
		t.Errorf("claims.yaml is\n%s\nwant\n%s", got, want)
	}
	readme := p.text(t, "README.md")
	for _, want := range []string{
		"# A paper\n\nProse.\n\n<!-- begin: runs -->\n\n7 runs with 1,234,567 gradient steps in 1.5 hours of CPU time, saved on 2026-11-16 with `loadstar-lab reproduce test2020 --save`.",
		"### A table (`table`)", "| hog | PL |", "| hog | FL † |", "† Training diverged: ", "FL on hog (1 of 3)", "Synthetic data, not measurements: robin.",
		"Table IV:\n\n| | FL MAE | PL MAE |\n|---|---|---|\n| California | 22.5 | only a picture |\n\n- a note\n",
		"2 claims. holds: 1, holds partly: 0, does not hold here: 1, not trained to the end: 0, not tested: 0; by arithmetic alone: 0.",
		"| `first`: PL is better \\| than FL. | table 1 | PL is clearly below FL. | not tested | **holds** | PL 1.1 (1-1.2) |  |",
		"| `second`: FL is better. | table 1 |  | new | **does not hold here** |  | The rate. |", "<!-- end -->\nMore prose.\n",
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("no %q in\n%s", want, readme)
		}
	}
	if strings.Contains(readme, "\nold\n") {
		t.Error("the old section is still there")
	}
	// A figure that was changed by hand is detected.
	path := filepath.Join(p.dir, "README.md")
	if err := os.WriteFile(path, []byte(strings.Replace(readme, "22.5", "22.6", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if difference, err := p.Verify(false); !errors.Is(err, ErrDiffers) || !strings.Contains(difference, "- | California | 22.6") {
		t.Errorf("%v: %s", err, difference)
	}
}

func TestSectionsRefuse(t *testing.T) {
	s := &sections{paper: study(t)}
	for text, want := range map[string]string{
		"":                      `no section "runs"`,
		"<!-- begin: other -->": `there is no section "other"`,
		"<!-- begin: runs -->":  "section runs has no end",
		"<!-- end -->":          "this ends no section",
		"<!-- begin: runs -->\n<!-- begin: claims -->": "section runs has no end",
	} {
		if _, err := s.fill([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLowest(t *testing.T) {
	at := func(loss float64, at ...string) experiment.Result {
		return experiment.Result{Dataset: "d", Method: "m", At: at, Figures: map[string]experiment.Figure{"validation_loss_lowest": {loss}}}
	}
	got := lowest([]experiment.Result{at(math.NaN(), "1", "a", "x"), at(3, "1", "b", "x"), at(2, "1", "b", "y"), at(4, "2", "a", "x"), {Dataset: "d", Method: "ridge"}})
	if len(got) != 3 || label(got[0]) != "m 1 b y" || label(got[1]) != "m 2 a x" || got[2].Method != "ridge" {
		t.Errorf("%+v", got)
	}
}

func TestFound(t *testing.T) {
	p := study(t)
	results, err := p.Results()
	if err != nil {
		t.Fatal(err)
	}
	claims, err := p.judge(results)
	if err != nil {
		t.Fatal(err)
	}
	got, err := found("PL ${test2020: mean(v(\"table\", \"hog\", \"PL\", \"mae\")); %.2f}, ${claims: holds} of ${claims: all}, ${improving: test2020} %", []*Paper{p}, [][]judged{claims})
	if want := "PL 1.10, 1 of 2, 0 %"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for _, text := range []string{"${mean(1)}", "${other2020: 1}", "${test2020: v(\"a\")}", "${improving: other}"} {
		if _, err := found(text, []*Paper{p}, [][]judged{claims}); err == nil {
			t.Errorf("%s was filled in", text)
		}
	}
}

// TestSaveParts checks that results of parts that were not run remain, with their costs.
func TestSaveParts(t *testing.T) {
	s, err := experiment.ReadSpec([]byte(`title: Test
parts:
  - {name: a, datasets: [hog], methods: [{name: FL, plan: {algorithm: fedavg}}]}
  - {name: b, datasets: [hog], methods: [{name: FL, plan: {algorithm: fedavg}}]}
`), false)
	if err != nil {
		t.Fatal(err)
	}
	p := &Paper{Spec: s}
	row := func(part, method string, figures map[string]experiment.Figure) experiment.Result {
		return experiment.Result{Part: part, Method: method, Figures: figures}
	}
	spent := func(part string, runs, date float64) experiment.Result {
		return row(experiment.Meta, part, map[string]experiment.Figure{"runs": {runs}, "gradients": {10 * runs}, "cpu_seconds": {3600 * runs}, "date": {date}})
	}
	mae := func(v float64) map[string]experiment.Figure { return map[string]experiment.Figure{"mae": {v}} }
	before := []experiment.Result{row("a", "FL", mae(1)), row("b", "FL", mae(2)), row("gone", "FL", mae(3)), spent("a", 1, 20260101), spent("b", 2, 20260101), spent("gone", 4, 20260101)}
	after := []experiment.Result{row("b", "FL", mae(5)), spent("b", 8, 20260202)}
	all := p.merge(before, after)
	var got []float64
	for _, r := range all {
		if r.Part != experiment.Meta {
			got = append(got, r.Figures["mae"].Mean())
		}
	}
	if !slices.Equal(got, []float64{1, 5}) {
		t.Errorf("the figures are %v", got)
	}
	if c := costOf(all); c.runs != 9 || c.gradients != 90 || c.hours != 9 || !slices.Equal(c.dates, []string{"2026-01-01", "2026-02-02"}) {
		t.Errorf("the costs are %v", c)
	}
	// When all parts were run, nothing of the earlier file remains.
	if c := costOf(p.merge(all, append(after, row("a", "FL", mae(6)), spent("a", 16, 20260202)))); c.runs != 24 || len(c.dates) != 1 {
		t.Errorf("the costs of all parts are %v", c)
	}
}
