package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/internal/atomicfile"
	"loadstar/internal/config"
	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// paperClaim is a claim of a paper, in papers/PAPER/claims.yaml.
type paperClaim struct {
	ID      string `yaml:"id"`
	Claim   string `yaml:"claim"`
	Where   string `yaml:"where"`
	Test    string `yaml:"test"`
	Verdict string `yaml:"verdict"`
	Figures string `yaml:"figures"`
}

// writePaperReport writes a paper's page: its claims with our verdicts, a table or a
// heat map for everything that was run, and pictures of one part's runs.
func writePaperReport(path, paper, runs string, s *experiment.Spec, results []experiment.Result, quick bool) error {
	r := report.Report{Title: s.Title, About: s.About, Tool: "loadstar " + version}
	if quick {
		r.About += "\nThese are the experiments in small, which only show that everything works."
	}
	var claims []paperClaim
	text, err := os.ReadFile(filepath.Join(papersDir, paper, "claims.yaml"))
	if err != nil {
		return err
	}
	if err := config.Decode(text, &claims); err != nil {
		return fmt.Errorf("claims of %s: %w", paper, err)
	}
	for _, c := range claims {
		v := report.Verdict(c.Verdict)
		if v == "" || quick {
			v, c.Figures = report.NotTested, ""
		}
		r.Claims = append(r.Claims, report.Claim{Text: fmt.Sprintf("%s (%s)", c.Claim, c.Where), Verdict: v, Figures: c.Figures})
	}
	for _, p := range s.Parts {
		for _, dataset := range p.Datasets {
			rows := resultsOf(results, p.Name, dataset)
			switch {
			case len(rows) == 0:
			case len(p.Grid) == 2:
				r.HeatMaps = append(r.HeatMaps, heatMaps(p, rows)...)
			default:
				r.Tables = append(r.Tables, resultTable(p, rows))
			}
		}
	}
	if r.Runs, r.Baselines, err = report.ReadExperiment(filepath.Join(runs, s.Pictures)); err != nil {
		return err
	}
	return atomicfile.Write(path, func(f *os.File) error { return r.Write(f) })
}

// resultsOf returns the results of one part on one dataset.
func resultsOf(all []experiment.Result, part, dataset string) []experiment.Result {
	return slices.DeleteFunc(slices.Clone(all), func(r experiment.Result) bool { return r.Part != part || r.Dataset != dataset })
}

func resultTable(p experiment.Part, rows []experiment.Result) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("%s: %s", p.Title, rows[0].Dataset), Generated: rows[0].Generated,
		Columns: []string{"method", "MASE", "median", "below 1", "MAE kW", "RMSE kW", "MAPE"},
	}
	tested := slices.ContainsFunc(rows, func(r experiment.Result) bool { _, ok := r.Figures["dm_better"]; return ok })
	if tested {
		t.Columns = append(t.Columns, p.Against+" better", "worse")
		t.Note = "The last columns: on how many clients the forecasts of " + p.Against + " are better or worse than this method's by more than chance (Diebold-Mariano)."
	}
	best := math.Inf(1)
	for i, r := range rows {
		f := r.Figures
		row := []string{
			strings.Join(append([]string{r.Method}, r.At...), " "), f["mase_mean"].String(), f["mase_median"].String(),
			percent(f, "below_one"), f["mae"].String(), f["rmse"].String(), f["mape"].String(),
		}
		if tested {
			row = append(row, percent(f, "dm_better"), percent(f, "dm_worse"))
		}
		t.Rows = append(t.Rows, row)
		if m := f["mase_median"].Mean; m < best {
			best, t.Best = m, i+1
		}
	}
	return t
}

func percent(f map[string]experiment.Figure, name string) string {
	v, ok := f[name]
	switch {
	case !ok:
		return ""
	case math.IsNaN(v.Mean):
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*v.Mean)
}

func heatMaps(p experiment.Part, rows []experiment.Result) []report.HeatMap {
	var all []report.HeatMap
	for _, m := range p.Methods {
		h := report.HeatMap{
			Title: fmt.Sprintf("%s, %s: %s", p.Title, m.Name, rows[0].Dataset), Generated: rows[0].Generated,
			Y: p.Grid[0].Key, X: p.Grid[1].Key, Value: "median MASE",
		}
		for x := range p.Grid[1].Values {
			h.XLabels = append(h.XLabels, p.Grid[1].Name(x))
		}
		for y := range p.Grid[0].Values {
			h.YLabels = append(h.YLabels, p.Grid[0].Name(y))
			line := make([]float64, len(h.XLabels))
			for i, x := range h.XLabels {
				line[i] = math.NaN()
				at := []string{p.Grid[0].Name(y), x}
				if j := slices.IndexFunc(rows, func(r experiment.Result) bool { return r.Method == m.Name && slices.Equal(r.At, at) }); j >= 0 {
					line[i] = rows[j].Figures["mase_median"].Mean
				}
			}
			h.Values = append(h.Values, line)
		}
		all = append(all, h)
	}
	return all
}
