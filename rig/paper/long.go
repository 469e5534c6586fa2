package paper

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// measured reports whether some rows are measurements other than forecasts, such as sizes
// of readings. Their tables have a row for each number.
func measured(rows []experiment.Result) bool {
	return slices.ContainsFunc(rows, func(r experiment.Result) bool { return r.Figures["relative_mae_mean"] == nil })
}

// longRows returns a row with the description, the name and the value of each number.
func longRows(rows []experiment.Result) [][]string {
	var all [][]string
	for _, r := range rows {
		for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
			value := r.Figures[name].String()
			if f := r.Figures[name]; len(f) == 1 && f[0] == float64(int64(f[0])) {
				value = grouped(f[0]) // a count, all of whose digits matter
			}
			all = append(all, []string{label(r), name, value})
		}
	}
	return all
}

// writeLong writes a table of measured numbers for a README.
func writeLong(out *strings.Builder, rows []experiment.Result) {
	fmt.Fprint(out, "| dataset | of | number | value |\n|---|---|---|---|\n")
	for _, r := range rows {
		for _, cells := range longRows([]experiment.Result{r}) {
			fmt.Fprintf(out, "| %s | %s |\n", r.Dataset, strings.Join(cells, " | "))
		}
	}
	fmt.Fprintln(out)
}

// longTable returns a table of measured numbers for a report.
func longTable(p experiment.Part, rows []experiment.Result) report.Table {
	return report.Table{
		Title: fmt.Sprintf("%s: %s", p.Title, rows[0].Dataset), Generated: rows[0].Generated,
		Columns: []string{"of", "number", "value"}, Rows: longRows(rows),
	}
}

func printLong(t io.Writer, rows []experiment.Result) {
	fmt.Fprintln(t, "OF\tNUMBER\tVALUE\t")
	for _, cells := range longRows(rows) {
		fmt.Fprintf(t, "%s\t\n", strings.Join(cells, "\t"))
	}
}
