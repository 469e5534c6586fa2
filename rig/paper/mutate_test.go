package paper

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// TestNotTrained checks that there is no verdict on runs that were still improving, unless the
// rule reads nothing that depends on training.
func TestNotTrained(t *testing.T) {
	better := claim{ID: "a", Holds: `clearly(v("table", "hog", "PL", "mae"), v("table", "hog", "FL", "mae"))`, RuledOut: "-"}
	work := claim{ID: "b", Holds: `mean(v("table", "hog", "PL", "steps")) <= mean(v("table", "hog", "FL", "steps"))`, RuledOut: "-"}
	for name, c := range map[string]struct {
		figures map[string]experiment.Figure // of PL
		want    report.Verdict
	}{
		"the last loss is above the lowest":    {map[string]experiment.Figure{"rose": {1.5, 1.2, 1.1}}, report.Holds},
		"the last loss is the lowest":          {map[string]experiment.Figure{"rose": {1.5, 1, 1.1}}, report.NotTrained},
		"the last loss is the lowest, hardly":  {map[string]experiment.Figure{"rose": {1.5, 1, 1.1}, "late_gain": {-1, 0.0005, -1}}, report.Holds},
		"the last loss is the lowest, clearly": {map[string]experiment.Figure{"rose": {1.5, 1, 1.1}, "late_gain": {-1, 0.002, -1}}, report.NotTrained},
		"no evaluation":                        {map[string]experiment.Figure{"rose": nil}, report.NotTrained},
	} {
		r := example()
		for i := range r.results {
			if r.results[i].Method == "PL" {
				for metric, f := range c.figures {
					r.results[i].Figures[metric] = f
				}
			}
		}
		j, err := r.judge(better)
		if err != nil || j.verdict != c.want || j.runs != 6 {
			t.Errorf("%s: %s of %d runs, %v; want %s", name, j.verdict, j.runs, err, c.want)
		}
		if j, err := r.judge(work); err != nil || j.verdict != report.Holds {
			t.Errorf("%s: %s for a rule on work, %v", name, j.verdict, err)
		}
	}
}

func TestMutate(t *testing.T) {
	r := example()
	for text, want := range map[string][2]bool{
		`clearly(v("table", "hog", "PL", "mae"), 1.5)`:                                                {true, true},  // 1.2 to 1.56
		`clearly(v("table", "hog", "PL", "mae"), v("table", "hog", "FL", "mae"))`:                     {true, false}, // 1.1 to 3.3 requires a factor of three
		`any(["mae", "steps"], mean(v("table", "hog", "PL", #)) < 1.2)`:                               {true, false}, // both must change
		`mean(v("table", "hog", "PL", "mae")) >= 0`:                                                   {false, false},
		`mean(v("table", "hog", "PL", "mae")) < 2 or mean(v("table", "hog", "PL", "mae")) >= 2`:       {false, false},
		`all(datasets("table"), mean(v("table", #, "PL", "mae")) < mean(v("table", #, "FL", "mae")))`: {true, false},
	} {
		turns, narrow, err := mutate(claim{Holds: text}, r.results, r.published)
		if err != nil || turns != want[0] || narrow != want[1] {
			t.Errorf("%s: %v, %v, %v; want %v", text, turns, narrow, err, want)
		}
	}
}

// TestRecomputed compares rules with the results of a separate program that was written from
// their descriptions.
func TestRecomputed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(papers, "recomputed.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		f := strings.Split(line, "\t")
		p, err := Open(filepath.Join(papers, f[0]), false)
		if err != nil {
			t.Fatal(err)
		}
		r := &rules{anyway: true}
		if r.results, err = p.Results(); err != nil {
			t.Fatal(err)
		}
		if r.published, err = p.published(); err != nil {
			t.Fatal(err)
		}
		claims, err := readClaims(p.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range claims {
			if c.ID != f[1] {
				continue
			}
			n++
			j, err := r.judge(c)
			if err != nil || string(j.verdict) != f[2] || (j.improving > 0) && f[3] == "0" {
				t.Errorf("%s: %s, %d still improving, %v; papers/recompute.py says %s, %s", f[1], j.verdict, j.improving, err, f[2], f[3])
			}
			if trained := f[3] == "0"; c.Verdict != string(report.NotTrained) && !trained && c.Verdict != f[2] || c.Verdict == string(report.NotTrained) && trained {
				t.Errorf("%s: the verdict is %s, though %s runs were still improving", f[1], c.Verdict, f[3])
			}
		}
	}
	if n != 20 {
		t.Errorf("%d claims were compared, want 20: run papers/recompute.py", n)
	}
}
