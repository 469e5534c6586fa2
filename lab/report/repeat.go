package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// planText contains the plan of a method, and the command that repeats its runs.
type planText struct {
	Name, Plan, Command string
	Facts               Table
}

// shownPlans is the maximum number of plans on a page.
const shownPlans = 12

// plans returns the plan of each method, with the hashes of its runs and the command that
// repeats the first run. A report on many methods shows no plans, because its runs are in a
// table.
func plans(sets []*dataset) []planText {
	var to []planText
	for _, s := range sets {
		for _, m := range s.trained() {
			r := m.runs[0]
			if r.summary == nil {
				continue
			}
			p := planText{Name: m.name + " on " + s.name, Plan: strings.TrimSpace(r.plan)}
			dir := strings.TrimSuffix(r.Dir, "/")
			data := "DATASET"
			if r.DataPath != "" {
				data = quoted(r.DataPath)
			}
			p.Command = fmt.Sprintf("loadstar simulate %s --data %s --out %s", quoted(dir+"/plan.yaml"), data, quoted(dir+"-again"))
			p.Facts = Table{Title: "Hashes of " + m.name, Note: "The same plan, data and kernel set give the same weights.", Columns: []string{"seed", "data", "weights (SHA-256)", "kernel set"}}
			start := ""
			for _, r := range m.runs {
				p.Facts.Rows = append(p.Facts.Rows, []string{fmt.Sprint(r.Seed), r.summary.Data, r.summary.Weights, r.summary.Kernel})
				start = cmp.Or(start, r.summary.Start)
			}
			if start != "" {
				p.Facts.Note += " The run started from the weights " + start + "."
			}
			to = append(to, p)
		}
	}
	if len(to) > shownPlans {
		return nil
	}
	return to
}

// quoted returns a path quoted for a shell.
func quoted(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+@", r))
	}) {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}

// runTables returns two tables about the runs: their cost, and the settings in which their
// plans differ.
func runTables(sets []*dataset) []Table {
	runs := Table{
		Title: "Training runs", Note: "Training time depends on the machine.",
		Columns: []string{"dataset", "method", "algorithm", "seeds", "clients", "rounds", "gradient steps", "MB per client", "training time, s"},
	}
	plans := Table{Title: "Differences between plans", Note: "Settings that are equal in all plans are omitted.", Columns: []string{"setting"}}
	var columns []map[string]string
	for _, s := range sets {
		runs.Note += divergence(s.methods)
		for _, m := range s.methods {
			if m.baseline {
				continue
			}
			var seeds []string
			seconds := 0.0
			for _, r := range m.runs {
				seeds = append(seeds, fmt.Sprint(r.Seed))
				seconds += r.seconds / float64(len(m.runs))
			}
			r := m.runs[0]
			name := s.name
			if s.generated {
				name += " (synthetic)"
			}
			runs.Rows = append(runs.Rows, []string{
				name, m.label(), r.Algorithm, strings.Join(seeds, ", "), fmt.Sprint(r.trained), fmt.Sprint(r.rounds),
				fmt.Sprint(r.steps), short(m.megabytes()), short(seconds),
			})
			// A plan that runs on several datasets has only one column in the table.
			if !slices.Contains(plans.Columns, m.name) {
				plans.Columns = append(plans.Columns, m.name)
				columns = append(columns, r.settings)
			}
		}
	}
	for _, key := range differing(columns) {
		row := []string{key}
		for _, c := range columns {
			row = append(row, cmp.Or(c[key], none))
		}
		plans.Rows = append(plans.Rows, row)
	}
	if len(plans.Rows) == 0 {
		return []Table{runs}
	}
	return []Table{runs, plans}
}
