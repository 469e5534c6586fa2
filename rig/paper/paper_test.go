package paper

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// papers is the folder of the repository's papers.
var papers = filepath.Join("..", "..", "papers")

// TestPapers checks that every paper of the repository can be opened with its claims, in its
// full and its small version.
func TestPapers(t *testing.T) {
	names := Names(papers)
	if !slices.Contains(names, "bose2023") {
		t.Fatalf("found the papers %v", names)
	}
	for _, name := range names {
		for _, quick := range []bool{false, true} {
			p, err := Open(filepath.Join(papers, name), quick)
			if err != nil {
				t.Error(err)
				continue
			}
			results, err := p.Results()
			if err != nil {
				t.Fatal(err)
			}
			claims, err := p.claims(results)
			if err != nil || len(claims) == 0 {
				t.Errorf("%s: %d claims, %v", name, len(claims), err)
			}
			for _, c := range claims {
				if quick && (c.Verdict != report.NotTested || c.Figures != "") {
					t.Errorf("%s: the small form has a verdict: %+v", name, c)
				}
			}
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, false); err == nil {
		t.Error("a folder without an experiment was opened")
	}
	for name, text := range map[string]string{"experiment.yaml": "title: Empty\n", "claims.yaml": "- {id: a, clam: b}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(dir, false); err == nil || !strings.Contains(err.Error(), "the experiment has no parts") {
		t.Error(err)
	}
	p := &Paper{dir: dir}
	if _, err := p.claims(nil); err == nil || !strings.Contains(err.Error(), "clam") {
		t.Error(err)
	}
}

func TestTable(t *testing.T) {
	figures := func(median float64) map[string]experiment.Figure {
		return map[string]experiment.Figure{
			"relative_mae_median": {median}, "below_one": {0.5}, "dm_better": {math.NaN()},
		}
	}
	rows := []experiment.Result{
		{Part: "p", Dataset: "d", Method: "a", At: []string{"1"}, Figures: figures(0.9)},
		{Part: "p", Dataset: "d", Method: "b", At: []string{"1"}, Figures: figures(0.8)},
		{Part: "p", Dataset: "other", Method: "b", Figures: figures(0.1)},
	}
	rows = Of(rows, "p", "d")
	got := table(experiment.Part{Title: "Part", Against: "a"}, rows)
	if len(got.Rows) != 2 || got.Best != 2 || got.Title != "Part: d" || !slices.Contains(got.Columns, "a better") {
		t.Errorf("%+v", got)
	}
	if row := got.Rows[1]; row[0] != "b 1" || row[2] != "0.8" || row[3] != "50 %" || row[7] != "-" || row[8] != "" {
		t.Errorf("%q", row)
	}
	plan := experiment.Fragment{"algorithm": "fedavg", "model": map[string]any{"name": "bose2024"}, "evaluate": map[string]any{"reference": "last-day"}}
	part := experiment.Part{Name: "p", Datasets: []string{"d"}, Plan: plan, Methods: []experiment.Method{{Name: "a"}, {Name: "b"}}}
	if head := table(part, rows).Columns[1]; head != "relative MAE (last-day)" {
		t.Errorf("the head is %q", head)
	}
	if m := medianAt(rows, "b", "1"); m != 0.8 {
		t.Error(m)
	}
	if m := medianAt(rows, "b", "2"); !math.IsNaN(m) {
		t.Error(m)
	}
}
