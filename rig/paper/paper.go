// Package paper reads the experiments and claims of a paper and writes its report: the
// claims with verdicts, a table or heat map for every part, and figures.
package paper

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/internal/disk"
	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// Paper is a folder with an experiment.yaml and a claims.yaml.
type Paper struct {
	Name string // name of the folder
	Spec *experiment.Spec

	// Note describes what the results do not cover, because data is missing. In that case
	// there are no verdicts. Otherwise Note is empty.
	Note string

	dir   string
	quick bool
}

// Open reads the experiment of a paper. If quick is true, it reads the small version of the
// experiment, which only checks that everything works.
func Open(dir string, quick bool) (*Paper, error) {
	text, err := os.ReadFile(filepath.Join(dir, "experiment.yaml"))
	if err != nil {
		return nil, err
	}
	spec, err := experiment.ReadSpec(text, quick)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(dir), err)
	}
	return &Paper{Name: filepath.Base(dir), Spec: spec, dir: dir, quick: quick}, nil
}

// Names lists the papers in a folder of papers.
func Names(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*", "experiment.yaml")) // the pattern is valid
	for i, f := range found {
		found[i] = filepath.Base(filepath.Dir(f))
	}
	return found
}

// WriteResults writes the results as a table to the file ours.tsv in dir.
func WriteResults(dir string, results []experiment.Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { // without runs, there is no folder
		return err
	}
	return disk.Write(filepath.Join(dir, "ours.tsv"), func(f *os.File) error { return experiment.WriteTSV(f, results) })
}

// WriteReport writes an HTML report of the results to path. runs is the folder of their
// runs. The footer of the page names tool as the generator. If a rule of a claim cannot be
// computed, the page shows the claim as not tested, and the error says why.
func (p *Paper) WriteReport(path, runs string, results []experiment.Result, tool string) error {
	s := p.Spec
	r := report.Report{Title: s.Title, About: s.About, Tool: tool}
	if p.quick {
		r.About += "\nThis is the quick form of the experiments. It only checks that everything works."
	}
	if p.Note != "" {
		r.About += "\n" + p.Note
	}
	var wrong, err error // the page is written even if a rule has an error
	r.Claims, wrong = p.claims(results)
	for _, part := range s.Parts {
		for _, dataset := range part.Datasets {
			rows := Of(results, part.Name, dataset)
			switch {
			case len(rows) == 0:
			case part.Data == experiment.Volume:
				r.Tables = append(r.Tables, longTable(part, rows))
			case part.Data == experiment.Loads:
				r.Boxes = append(r.Boxes, boxChart(part, rows))
			case len(part.Grid) == 2:
				r.HeatMaps = append(r.HeatMaps, heatMaps(part, rows)...)
			default:
				r.Tables = append(r.Tables, table(part, rows))
			}
		}
	}
	// A part that describes datasets has no runs.
	if !slices.ContainsFunc(s.Parts, func(p experiment.Part) bool { return p.Name == s.Pictures && p.Data != "" }) {
		if r.Runs, r.Baselines, err = report.ReadExperiment(filepath.Join(runs, s.Pictures)); err != nil {
			return err
		}
	}
	return errors.Join(wrong, disk.Write(path, func(f *os.File) error { return r.Write(f) }))
}

// claims returns the claims of the paper with verdicts that follow from the results. The small
// version of an experiment has no verdicts, and neither has an experiment with missing data.
func (p *Paper) claims(results []experiment.Result) (all []report.Claim, err error) {
	if p.quick || p.Note != "" {
		claims, err := readClaims(p.dir)
		for _, c := range claims {
			all = append(all, report.Claim{Text: c.title(), Verdict: report.NotTested})
		}
		return all, err
	}
	judged, err := p.judge(results)
	for _, c := range judged {
		all = append(all, report.Claim{Text: c.title(), Verdict: c.verdict, Figures: strings.TrimSpace(c.evidence() + " " + c.causes())})
	}
	return all, err
}

// title returns the claim and its place in the paper.
func (c claim) title() string { return fmt.Sprintf("%s (%s)", c.Claim, c.Where) }

// Of returns the results of the given part and dataset.
func Of(all []experiment.Result, part, dataset string) []experiment.Result {
	return slices.DeleteFunc(slices.Clone(all), func(r experiment.Result) bool { return r.Part != part || r.Dataset != dataset })
}

// relativeMAE returns the head of the column of relative errors, with the reference.
func relativeMAE(p experiment.Part) string {
	if r := p.Reference(); r != "" {
		return "relative MAE (" + r + ")"
	}
	return "relative MAE"
}

func table(p experiment.Part, rows []experiment.Result) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("%s: %s", p.Title, rows[0].Dataset), Generated: rows[0].Generated,
		Columns: []string{"method", relativeMAE(p), "median", "below 1", "MAE kW", "RMSE kW", "MAPE"},
	}
	if p.Data != "" {
		t.Columns = []string{"column", "correlation with load"}
		for _, r := range rows {
			t.Rows = append(t.Rows, []string{r.Method, r.Figures["correlation"].String()})
		}
		return t
	}
	tested := slices.ContainsFunc(rows, func(r experiment.Result) bool { _, ok := r.Figures["dm_better"]; return ok })
	if tested {
		t.Columns = append(t.Columns, p.Against+" better", "worse")
		t.Note = "The last columns show the share of clients for which the forecasts of " + p.Against + " are significantly better or worse than this method's (Diebold-Mariano test)."
	}
	t.Note = strings.TrimSpace(strings.TrimSpace(t.Note+" "+divergence(rows)) + " " + unfinished(rows))
	best := math.Inf(1)
	for i, r := range rows {
		f := r.Figures
		row := []string{
			label(r), f["relative_mae_mean"].String(), f["relative_mae_median"].String(),
			Percent(f, "below_one"), f["mae"].String(), f["rmse"].String(), inPercent(f["mape"]),
		}
		if tested {
			row = append(row, Percent(f, "dm_better"), Percent(f, "dm_worse"))
		}
		t.Rows = append(t.Rows, row)
		if m := f["relative_mae_median"].Mean(); m < best {
			best, t.Best = m, i+1
		}
	}
	return t
}

// inPercent formats a share in per cent with its range over seeds, such as
// 25.3 % (24.1-26.2).
func inPercent(f experiment.Figure) string {
	mean := f.Mean()
	if math.IsNaN(mean) {
		return "-"
	}
	digits := func(v float64) string { return fmt.Sprintf("%.1f", 100*v) }
	if low, high := digits(f.Low()), digits(f.High()); low != high {
		return fmt.Sprintf("%s %% (%s-%s)", digits(mean), low, high)
	}
	return digits(mean) + " %"
}

// Percent formats the share f[name] with its range over seeds. It returns "" if f has no
// such figure.
func Percent(f map[string]experiment.Figure, name string) string {
	v, ok := f[name]
	switch {
	case !ok:
		return ""
	case math.IsNaN(v.Mean()):
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*v.Mean())
}

func heatMaps(p experiment.Part, rows []experiment.Result) []report.HeatMap {
	var all []report.HeatMap
	for _, m := range p.Methods {
		h := report.HeatMap{
			Title: fmt.Sprintf("%s, %s: %s", p.Title, m.Name, rows[0].Dataset), Generated: rows[0].Generated,
			Y: p.Grid[0].Key, X: p.Grid[1].Key, Value: "median " + relativeMAE(p),
			Note: divergence(slices.DeleteFunc(slices.Clone(rows), func(r experiment.Result) bool { return r.Method != m.Name })),
		}
		for x := range p.Grid[1].Values {
			h.XLabels = append(h.XLabels, p.Grid[1].Name(x))
		}
		for y := range p.Grid[0].Values {
			h.YLabels = append(h.YLabels, p.Grid[0].Name(y))
			line := make([]float64, len(h.XLabels))
			for i, x := range h.XLabels {
				line[i] = medianAt(rows, m.Name, p.Grid[0].Name(y), x)
			}
			h.Values = append(h.Values, line)
		}
		all = append(all, h)
	}
	return all
}

// medianAt returns a method's median relative MAE at a point of the grid, or NaN if there is no
// such result.
func medianAt(rows []experiment.Result, method string, at ...string) float64 {
	i := slices.IndexFunc(rows, func(r experiment.Result) bool { return r.Method == method && slices.Equal(r.At, at) })
	if i < 0 {
		return math.NaN()
	}
	return rows[i].Figures["relative_mae_median"].Mean()
}
