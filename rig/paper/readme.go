package paper

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// sections generates the parts of a README that are computed from files. Each is between a line
// <!-- begin: NAME --> and a line <!-- end -->.
type sections struct {
	paper     *Paper
	results   []experiment.Result
	claims    []judged
	published []printed
	summary   string // text with expressions, or "" if the paper has none
}

const (
	beginMark = "<!-- begin: "
	endMark   = "<!-- end -->"
)

// names lists the sections that every README has.
var names = []string{"runs", "results", "published", "claims"}

// fill returns the text with regenerated sections. Text outside of the sections does not
// change.
func (s *sections) fill(text []byte) ([]byte, error) {
	var (
		out  []string
		seen []string
		in   string
	)
	for i, line := range strings.Split(string(text), "\n") {
		switch name, begins := strings.CutPrefix(line, beginMark); {
		case begins && in != "":
			return nil, fmt.Errorf("line %d: section %s has no end", i+1, in)
		case begins:
			in = strings.TrimSuffix(name, " -->")
			body, err := s.section(in)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			out = append(out, line, "", strings.TrimSpace(body), "")
			seen = append(seen, in)
		case line == endMark && in == "":
			return nil, fmt.Errorf("line %d: this ends no section", i+1)
		case line == endMark:
			in = ""
			out = append(out, line)
		case in == "":
			out = append(out, line)
		}
	}
	if in != "" {
		return nil, fmt.Errorf("section %s has no end", in)
	}
	for _, name := range names {
		if !slices.Contains(seen, name) {
			return nil, fmt.Errorf("there is no section %q; add the lines \"%s%s -->\" and \"%s\"", name, beginMark, name, endMark)
		}
	}
	return []byte(strings.Join(out, "\n")), nil
}

func (s *sections) section(name string) (string, error) {
	switch name {
	case "summary":
		r := &rules{results: s.results, published: s.published}
		return r.fill(s.summary)
	case "runs":
		return s.runs(), nil
	case "results":
		return s.tables(), nil
	case "published":
		return s.printed(), nil
	case "claims":
		return s.verdicts(), nil
	}
	return "", fmt.Errorf("there is no section %q; there are %s", name, strings.Join(names, ", "))
}

// runs formats the cost of the results and the dates on which they were saved.
func (s *sections) runs() string {
	c := costOf(s.results)
	if len(c.dates) == 0 {
		return "`ours.tsv` does not say what these runs cost."
	}
	return fmt.Sprintf("%.0f runs with %s gradient steps in %.1f hours of CPU time, saved on %s with `loadstar-lab reproduce %s --save`. Resumed runs count the CPU time of their last process only.",
		c.runs, grouped(c.gradients), c.hours, strings.Join(c.dates, " and "), s.paper.Name)
}

// cost is the cost of computing results.
type cost struct {
	runs, gradients, hours float64 // hours of CPU time
	dates                  []string
}

// costOf adds up the costs of all parts.
func costOf(results []experiment.Result) (c cost) {
	for _, r := range results {
		if r.Part != experiment.Meta {
			continue
		}
		f := r.Figures
		c.runs += f["runs"].Mean()
		c.gradients += f["gradients"].Mean()
		c.hours += f["cpu_seconds"].Mean() / 3600
		date := fmt.Sprintf("%.0f", f["date"].Mean())
		if len(date) == 8 {
			date = date[:4] + "-" + date[4:6] + "-" + date[6:]
		}
		if !slices.Contains(c.dates, date) {
			c.dates = append(c.dates, date)
		}
	}
	slices.Sort(c.dates)
	return c
}

// grouped formats a whole number with commas.
func grouped(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// verdicts is the table of claims.
func (s *sections) verdicts() string {
	var out strings.Builder
	count := map[string]int{}
	for _, c := range s.claims {
		count[c.group()]++
	}
	var counts []string
	for _, v := range verdicts {
		counts = append(counts, fmt.Sprintf("%s: %d", v, count[string(v)]))
	}
	fmt.Fprintf(&out, "%d claims. %s; by arithmetic alone: %d.\n\n", len(s.claims), strings.Join(counts, ", "), count[arithmetic])
	fmt.Fprintln(&out, "| claim | where | rule | before | verdict | figures | ruled out as the cause |\n|---|---|---|---|---|---|---|")
	for _, c := range s.claims {
		fmt.Fprintf(&out, "| `%s`: %s | %s | %s | %s | **%s** | %s | %s |\n", c.ID, cell(c.Claim), cell(c.Where), cell(c.Test), cmp.Or(cell(c.Before), "new"), c.kind(), cell(c.evidence()), cell(c.causes()))
	}
	return out.String()
}

// arithmetic is the group of claims whose rules cannot fail.
const arithmetic = "arithmetic"

// group returns the name under which a claim is counted, which is its verdict or arithmetic.
func (j judged) group() string {
	if j.Arithmetic {
		return arithmetic
	}
	return string(j.verdict)
}

// kind returns the verdict for display.
func (j judged) kind() string {
	if j.Arithmetic {
		return string(j.verdict) + ", by arithmetic"
	}
	return string(j.verdict)
}

// evidence returns the figures, and, if a claim is not tested or its runs prove nothing, the
// reason.
func (j judged) evidence() string {
	switch j.verdict {
	case report.NotTested:
		return strings.TrimSpace(j.Why + " " + j.figures)
	case report.NotTrained:
		return strings.TrimSpace(fmt.Sprintf("%d of the %d runs that the rule reads were still improving when they ended. %s", j.improving, j.runs, j.figures))
	}
	return j.figures
}

// causes returns the causes that are ruled out, if the claim does not hold.
func (j judged) causes() string {
	if j.verdict == report.DoesNotHold || j.verdict == report.HoldsPartly {
		return j.RuledOut
	}
	return ""
}

// cell returns text for a cell of a Markdown table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
}

// printed contains the numbers that the paper prints, with a table for each of the paper's
// tables.
func (s *sections) printed() string {
	var out strings.Builder
	var tables []string
	for _, p := range s.published {
		if !slices.Contains(tables, p.table) {
			tables = append(tables, p.table)
		}
	}
	for _, table := range tables {
		var rows, columns, notes []string
		cells := map[[2]string]string{}
		for _, p := range s.published {
			if p.table != table {
				continue
			}
			column := strings.TrimSpace(p.column + " " + p.metric)
			if !slices.Contains(rows, p.row) {
				rows = append(rows, p.row)
			}
			if !slices.Contains(columns, column) {
				columns = append(columns, column)
			}
			cells[[2]string{p.row, column}] = cmp.Or(p.value, "only a picture")
			if p.note != "" && !slices.Contains(notes, p.note) {
				notes = append(notes, p.note)
			}
		}
		title := table
		if !strings.ContainsAny(table, " .") {
			title = "Table " + table
		}
		fmt.Fprintf(&out, "%s:\n\n| |", title)
		for _, c := range columns {
			fmt.Fprintf(&out, " %s |", cell(c))
		}
		fmt.Fprintf(&out, "\n|---|%s\n", strings.Repeat("---|", len(columns)))
		for _, r := range rows {
			fmt.Fprintf(&out, "| %s |", cell(r))
			for _, c := range columns {
				fmt.Fprintf(&out, " %s |", cells[[2]string{r, c}])
			}
			fmt.Fprintln(&out)
		}
		fmt.Fprintln(&out)
		for _, n := range notes {
			fmt.Fprintf(&out, "- %s\n", cell(n))
		}
		if len(notes) > 0 {
			fmt.Fprintln(&out)
		}
	}
	return out.String()
}

// tables contains a table for each part of the results.
func (s *sections) tables() string {
	var out strings.Builder
	var parts []string
	for _, r := range s.results {
		if r.Part != experiment.Meta && !slices.Contains(parts, r.Part) {
			parts = append(parts, r.Part)
		}
	}
	for _, name := range parts {
		rows := slices.DeleteFunc(slices.Clone(s.results), func(r experiment.Result) bool { return r.Part != name })
		title, against := name, ""
		if i := slices.IndexFunc(s.paper.Spec.Parts, func(p experiment.Part) bool { return p.Name == name }); i >= 0 {
			title, against = cmp.Or(s.paper.Spec.Parts[i].Title, name), s.paper.Spec.Parts[i].Against
		}
		fmt.Fprintf(&out, "### %s (`%s`)\n\n", title, name)
		switch {
		case loads(rows):
			writeLoads(&out, rows)
		case measured(rows):
			writeLong(&out, rows)
		case slices.ContainsFunc(rows, func(r experiment.Result) bool { return len(r.At) == 2 }):
			writeGrid(&out, rows)
		case slices.ContainsFunc(rows, func(r experiment.Result) bool { return len(r.At) > 2 }):
			fmt.Fprintf(&out, "Of the %d points of the grid, the one with the lowest validation loss for each value of the first setting; `ours.tsv` has all.\n\n", len(rows))
			writeMethods(&out, lowest(rows), against)
		default:
			writeMethods(&out, rows, against)
		}
		for _, note := range []string{divergence(rows), unfinished(rows), synthetic(rows)} {
			if note != "" {
				fmt.Fprintf(&out, "%s\n\n", note)
			}
		}
	}
	return out.String()
}

// lowest returns, for each dataset, method and value of a grid's first setting, the result with
// the lowest validation loss.
func lowest(rows []experiment.Result) []experiment.Result {
	var best []experiment.Result
	loss := func(r experiment.Result) float64 { return r.Figures["validation_loss_lowest"].Mean() }
	for _, r := range rows {
		i := slices.IndexFunc(best, func(o experiment.Result) bool {
			return o.Dataset == r.Dataset && o.Method == r.Method && slices.Equal(o.At[:min(1, len(o.At))], r.At[:min(1, len(r.At))])
		})
		switch {
		case i < 0:
			best = append(best, r)
		case loss(r) < loss(best[i]) || math.IsNaN(loss(best[i])):
			best[i] = r
		}
	}
	return best
}

func writeMethods(out *strings.Builder, rows []experiment.Result, against string) {
	head := []string{"dataset", "method", "relative MAE", "median", "below 1", "MAE kW", "RMSE kW", "MAPE", "seeds", "gradients per client", "training loss, first and last"}
	tested := slices.ContainsFunc(rows, func(r experiment.Result) bool { return r.Figures["dm_better"] != nil })
	if tested {
		head = append(head, against+" better", "worse")
	}
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, r := range rows {
		f := r.Figures
		cells := []string{
			r.Dataset, label(r), f["relative_mae_mean"].String(), f["relative_mae_median"].String(), Percent(f, "below_one"),
			f["mae"].String(), f["rmse"].String(), Percent(f, "mape"), "", "", "",
		}
		if trained(r) {
			cells[8] = fmt.Sprint(len(f["relative_mae_mean"]))
			cells[9] = grouped(f["gradients"].Mean())
			if first, last := f["train_loss_first"].Mean(), f["train_loss_last"].Mean(); !math.IsNaN(first + last) {
				cells[10] = fmt.Sprintf("%.3g, %.3g", first, last)
			}
		}
		if tested {
			cells = append(cells, Percent(f, "dm_better"), Percent(f, "dm_worse"))
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintln(out)
}

// writeGrid writes the median relative MAE of each method over two settings.
func writeGrid(out *strings.Builder, rows []experiment.Result) {
	var across []string
	for _, r := range rows {
		if len(r.At) == 2 && !slices.Contains(across, r.At[1]) {
			across = append(across, r.At[1])
		}
	}
	fmt.Fprintf(out, "Median relative MAE.\n\n| dataset | method | | %s |\n|---|---|---|%s\n", strings.Join(across, " | "), strings.Repeat("---|", len(across)))
	for i, r := range rows {
		if len(r.At) != 2 { // a baseline
			fmt.Fprintf(out, "| %s | %s | | %s |%s\n", r.Dataset, label(r), r.Figures["relative_mae_median"], strings.Repeat(" |", len(across)-1))
			continue
		}
		line := func(o experiment.Result) bool {
			return o.Dataset == r.Dataset && o.Method == r.Method && len(o.At) == 2 && o.At[0] == r.At[0]
		}
		if slices.ContainsFunc(rows[:i], line) {
			continue
		}
		fmt.Fprintf(out, "| %s | %s | %s |", r.Dataset, r.Method, r.At[0])
		for _, x := range across {
			k := slices.IndexFunc(rows, func(o experiment.Result) bool { return line(o) && o.At[1] == x })
			if k < 0 {
				fmt.Fprint(out, " |")
				continue
			}
			fmt.Fprintf(out, " %s%s |", rows[k].Figures["relative_mae_median"], mark(rows[k]))
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out)
}
