package paper

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// verdicts lists the verdicts in display order.
var verdicts = []report.Verdict{report.Holds, report.HoldsPartly, report.DoesNotHold, report.NotTrained, report.NotTested}

// mark returns a dagger for a result of which some runs diverged, a double dagger for one of
// which some runs were still improving, and otherwise "".
func mark(r experiment.Result) string {
	text := ""
	if r.Diverged() > 0 {
		text = " †"
	}
	if r.Improving() > 0 {
		text += " ‡"
	}
	return text
}

// label returns the name of a result in tables: the method, its point of the grid, and a
// mark if it diverged.
func label(r experiment.Result) string {
	return strings.Join(append([]string{r.Method}, r.At...), " ") + mark(r)
}

// divergence returns a sentence on the runs that diverged, or "" if there are none. It is the
// note below tables in which results are marked.
func divergence(rows []experiment.Result) string {
	const few = 8
	var lost []string
	for _, r := range rows {
		if n := r.Diverged(); n > 0 {
			name := strings.Join(append([]string{r.Method}, r.At...), " ")
			lost = append(lost, fmt.Sprintf("%s on %s (%d of %d)", name, r.Dataset, n, len(r.Figures["diverged"])))
		}
	}
	if len(lost) == 0 {
		return ""
	}
	text := strings.Join(lost[:min(few, len(lost))], ", ")
	if len(lost) > few {
		text += fmt.Sprintf(" and %d others", len(lost)-few)
	}
	return "† Training diverged: the validation loss ended at ten times its lowest value or more, or was not finite. Runs, by seeds: " + text + "."
}

// unfinished returns a sentence on the runs that were still improving when they ended, or ""
// if there are none.
func unfinished(rows []experiment.Result) string {
	runs, improving := ended(rows)
	if improving == 0 {
		return ""
	}
	return fmt.Sprintf("‡ Not trained to the end: the last evaluation of a run was its best. %d of the %d runs in this table ended this way.", improving, runs)
}

// ended counts the runs of results that did not fail, and those that were still improving when they ended.
func ended(rows []experiment.Result) (runs, improving int) {
	for _, r := range rows {
		for i, lost := range r.Figures["diverged"] {
			if rose := r.Figures["rose"]; lost == 0 || i < len(rose) && !math.IsNaN(rose[i]) {
				runs++ // a run that failed has no end
			}
		}
		improving += r.Improving()
	}
	return runs, improving
}

// synthetic returns a sentence on the datasets that are generated, or "" if none is.
func synthetic(rows []experiment.Result) string {
	var names []string
	for _, r := range rows {
		if r.Generated && !slices.Contains(names, r.Dataset) {
			names = append(names, r.Dataset)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "Synthetic data, not measurements: " + strings.Join(names, ", ") + "."
}
