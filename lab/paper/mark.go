package paper

import (
	"fmt"
	"slices"
	"strings"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// verdicts lists the verdicts in display order.
var verdicts = []report.Verdict{report.Holds, report.HoldsPartly, report.DoesNotHold, report.NotTested}

// mark returns a dagger for a result of runs of which some diverged, and otherwise "".
func mark(r experiment.Result) string {
	if r.Diverged() > 0 {
		return " †"
	}
	return ""
}

// label returns the name of a result in tables: the method, its point of the grid, and a
// mark if it diverged.
func label(r experiment.Result) string {
	return strings.Join(append([]string{r.Method}, r.At...), " ") + mark(r)
}

// divergence returns a sentence on the runs that diverged, or "" if there are none. Tables
// in which results are marked have it as a note.
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
