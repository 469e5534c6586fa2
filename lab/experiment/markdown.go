package experiment

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"loadstar/metric"
)

// WriteMarkdown writes comparisons of the same methods on several datasets as Markdown tables:
// a row for each method and a column for each dataset. The baselines come first, with the
// strongest at the top. subject is the subject of the contests.
func WriteMarkdown(w io.Writer, all []Comparison, subject string) error {
	t := &tables{w: w, all: all}
	order := methodOrder(all)
	t.table("Relative MAE: median over clients (mean, share of clients below 1). Reference: "+references(all)+".", order, func(c Compared) string {
		return fmt.Sprintf("%.3f (%.2f, %.0f %%)%s", c.Median, c.Mean, 100*c.BelowOne, c.mark())
	})
	t.table("Lowest and highest median of any seed.", order, func(c Compared) string {
		if c.Seeds < 2 {
			return ""
		}
		return fmt.Sprintf("%.3f-%.3f", c.Low, c.High)
	})
	t.table("MAE, mean over clients, kW.", order, func(c Compared) string { return fmt.Sprintf("%.3f", c.MAE) })
	if subject != "" {
		t.table("Error of "+subject+" relative to that of the other methods, client by client: median ratio of MAEs, with a 95 % interval from resampled clients; share of clients with a "+
			"lower error; shares of clients for which it is significantly better and worse (Diebold-Mariano test on daily errors, 5 %).", order, func(c Compared) string {
			if c.Paired == nil {
				return ""
			}
			text := fmt.Sprintf("%.3f (%.3f-%.3f); %.0f %%", c.Paired.Ratio, c.Paired.Low, c.Paired.High, 100*c.Paired.Won)
			if !undefined(c.Paired.Better) {
				text += fmt.Sprintf("; %.0f/%.0f %%", 100*c.Paired.Better, 100*c.Paired.Worse)
			}
			return text
		})
		t.table("The same median ratio of MAEs if the forecasts of "+subject+" are not corrected by their latest errors.", order, func(c Compared) string {
			if c.Paired == nil || c.Paired.Uncorrected == 0 || undefined(c.Paired.Uncorrected) {
				return ""
			}
			return fmt.Sprintf("%.3f", c.Paired.Uncorrected)
		})
	}
	t.table("Share of loads between P10 and P90: raw quantiles, and after rolling calibration. Mean over clients; 80 % is right.", order, func(c Compared) string {
		if undefined(c.Coverage) {
			return ""
		}
		return fmt.Sprintf("%.1f %%, %.1f %%", 100*c.Coverage, 100*c.Calibrated)
	})
	t.table("CPU seconds of training and scoring, mean over seeds; bytes that a client receives and sends in a round.", order, func(c Compared) string {
		if c.Seeds == 0 {
			return ""
		}
		return fmt.Sprintf("%.0f s, %d + %d", c.CPU, c.Down, c.Up)
	})
	if note := divergedNote(all); note != "" && t.err == nil {
		_, t.err = fmt.Fprintf(w, "\n%s\n", note)
	}
	return t.err
}

// mark returns a dagger if a run of the method diverged, and otherwise "".
func (c Compared) mark() string {
	if c.Diverged > 0 {
		return " †"
	}
	return ""
}

// divergedNote returns a note that explains the marks of methods that diverged, or "" if there
// are none.
func divergedNote(all []Comparison) string {
	var lost []string
	for _, c := range all {
		for _, m := range c.Methods {
			if m.Diverged > 0 {
				lost = append(lost, fmt.Sprintf("%s on %s (%d of %d seeds)", m.Method, c.Dataset, m.Diverged, m.Seeds))
			}
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return "† Training diverged, because the validation loss ended at ten times its lowest value or more: " + strings.Join(lost, ", ") + "."
}

// references lists the references of the comparisons without repetition.
func references(all []Comparison) string {
	var names []string
	for _, c := range all {
		if !slices.Contains(names, string(c.Reference)) {
			names = append(names, string(c.Reference))
		}
	}
	return strings.Join(names, ", ")
}

// methodOrder returns the names of all methods. Baselines come first, sorted by the mean of
// their medians over datasets.
func methodOrder(all []Comparison) []string {
	var names []string
	total := map[string]float64{}
	trained := map[string]bool{}
	for _, c := range all {
		for _, m := range c.Methods {
			if !slices.Contains(names, m.Method) {
				names = append(names, m.Method)
			}
			total[m.Method] += float64(m.Median)
			trained[m.Method] = m.Seeds > 0
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case trained[a] && trained[b]:
			return 0
		case trained[a]:
			return 1
		case trained[b]:
			return -1
		}
		return cmp.Compare(total[a], total[b])
	})
	return names
}

// tables writes Markdown tables until the first error.
type tables struct {
	w   io.Writer
	all []Comparison
	err error
}

// table writes a table of the given methods. It leaves out methods that have no cell, and
// it writes nothing if no method has one.
func (t *tables) table(title string, methods []string, cell func(Compared) string) {
	var rows []string
	for _, name := range methods {
		cells, some := make([]string, len(t.all)), false
		for i, c := range t.all {
			if k := slices.IndexFunc(c.Methods, func(m Compared) bool { return m.Method == name }); k >= 0 {
				cells[i] = cell(c.Methods[k])
				some = some || cells[i] != ""
			}
		}
		if some {
			rows = append(rows, "| "+name+" | "+strings.Join(cells, " | ")+" |")
		}
	}
	if len(rows) == 0 || t.err != nil {
		return
	}
	head := "| |"
	for _, c := range t.all {
		head += " " + c.Dataset
		if c.Generated {
			head += " (synthetic)"
		}
		head += " |"
	}
	_, t.err = fmt.Fprintf(t.w, "\n%s\n\n%s\n|---|%s\n%s\n", title, head, strings.Repeat("---|", len(t.all)), strings.Join(rows, "\n"))
}

func undefined(n metric.Number) bool { return math.IsNaN(float64(n)) }
