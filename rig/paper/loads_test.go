package paper

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/lab/experiment"
)

// building returns a row of a part with data: loads.
func building(dataset, name string, median, mean float64) experiment.Result {
	return experiment.Result{Part: "figure-2", Dataset: dataset, Generated: true, Method: name, Figures: map[string]experiment.Figure{
		"p5": {median / 4}, "p25": {median / 2}, "p50": {median}, "p75": {median * 2}, "p95": {median * 4}, "mean": {mean},
	}}
}

func TestLoads(t *testing.T) {
	rows := []experiment.Result{
		building("one", "b", 30, 40), building("one", "a", 2, 4), building("one", "d", 10, 11), building("one", "c", 8, 9),
		building("one", "none", math.NaN(), math.NaN()),
		building("two", "a", 5, 0), building("two", "b", 7, 8),
	}
	rows[5].Figures["buildings"], rows[6].Figures["buildings"] = experiment.Figure{12345}, experiment.Figure{12345}
	spec, err := experiment.ReadSpec([]byte("title: x\nparts:\n  - {name: figure-2, title: Figure 2, data: loads, datasets: [one, two]}\n"), false)
	if err != nil {
		t.Fatal(err)
	}
	p := &Paper{Name: "x", Spec: spec, dir: t.TempDir(), quick: true} // without verdicts

	text := (&sections{paper: p, results: rows}).tables()
	for _, want := range []string{
		"### Figure 2 (`figure-2`)", "\n| one | 5 | 2 | 9 | 30 | 10 |\n", "\n| two | 2 of 12,345 | 5 | 6 | 7 | - |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\ndoes not contain %q", text, want)
		}
	}
	if n := strings.Count(text, "\n| "); n != 3 {
		t.Errorf("%s\nhas %d rows", text, n)
	}

	var out bytes.Buffer
	if err := Print(&out, spec, rows); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "2 of 12,345") || strings.Count(out.String(), "LOWEST MEDIAN kW") != 2 || strings.Contains(out.String(), "CORRELATION") {
		t.Error(out.String())
	}

	c := boxChart(spec.Parts[0], Of(rows, "figure-2", "one"))
	if len(c.Boxes) != 5 || c.Boxes[0].Name != "b" || c.Boxes[0].Quantiles != [5]float64{7.5, 15, 30, 60, 120} || c.Boxes[0].Mean != 40 || !c.Generated {
		t.Errorf("%+v", c)
	}
	if !strings.Contains(c.Note, "10 times the smallest") || strings.Contains(c.Note, "evenly spaced") {
		t.Error(c.Note)
	}
	c = boxChart(spec.Parts[0], Of(rows, "figure-2", "two"))
	if strings.Contains(c.Note, "times") || !strings.Contains(c.Note, "2 of 12,345 buildings, evenly spaced") {
		t.Error(c.Note)
	}

	if err := os.WriteFile(filepath.Join(p.dir, "claims.yaml"), []byte("- {id: a, claim: b, where: c, test: d, why: e}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.dir, "report.html")
	if err := p.WriteReport(path, p.dir, rows, "test"); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(page, []byte(`data-kind="box" data-generated`)); n != 2 {
		t.Errorf("the report has %d box charts", n)
	}
}
