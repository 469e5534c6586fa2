package experiment

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"loadstar/internal/textfmt"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/disk"
	"loadstar/metric"
)

// best returns the best plan with a comment about the search.
func (t *Tuning) best(r *Tuned) ([]byte, error) {
	b := r.Candidates[0]
	settings, err := yaml.Marshal(map[string]any(b.set))
	if err != nil {
		return nil, err
	}
	var to bytes.Buffer
	fmt.Fprintf(&to, "# The best of %d plans on %s%s, by the validation loss of %s.\n", len(r.Candidates), r.Dataset, map[bool]string{true: " (SYNTHETIC data)"}[r.Generated], textfmt.Count(r.Clients, "client"))
	for _, a := range t.Axes {
		var values []string
		for i := range a.Values {
			values = append(values, a.Name(i))
		}
		fmt.Fprintf(&to, "# Searched: %s = %s\n", a.Key, strings.Join(values, ", "))
	}
	fmt.Fprintf(&to, "# %s\n", r.Verdict())
	fmt.Fprintf(&to, "# The test split was not read. Score this plan on it once: loadstar simulate\n")
	to.Write(settings)
	return to.Bytes(), nil
}

// Verdict compares the best plan with the given one.
func (r *Tuned) Verdict() string {
	b := r.Candidates[0]
	seeds := ""
	if len(r.Seeds) == 1 {
		seeds = " This is one seed: repeat the search with --seeds before you believe a small difference."
	}
	if b.Given {
		return fmt.Sprintf("No plan is better than the given one, with a validation loss of %.5g.%s", b.Loss, seeds)
	}
	i := slices.IndexFunc(r.Candidates, func(c Candidate) bool { return c.Given })
	return fmt.Sprintf("Its validation loss is %.5g, that of the given plan %.5g (%+.1f %%), and lower for %.0f %% of the clients.%s",
		b.Loss, r.Candidates[i].Loss, 100*b.Change, 100*b.Lower, seeds)
}

// Print prints the plans as a table with a chart of their losses.
func (r *Tuned) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s%s: %s, scored on the validation split; the test split is not read\n\n", r.Dataset, textfmt.Synthetic(r.Generated), textfmt.Count(r.Clients, "client"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, k := range r.Keys {
		fmt.Fprintf(t, "%s\t", k)
	}
	fmt.Fprintln(t, "ROUNDS\tLOSS\tREL. MAE\tMEDIAN\tCPU\tCHANGE\t")
	most := metric.Number(0)
	for _, c := range r.Candidates {
		if v := metric.Number(math.Abs(float64(c.Change))); v > most && !math.IsInf(float64(v), 0) {
			most = v
		}
	}
	last := len(r.Stages) - 1
	for _, c := range r.Candidates {
		for i := range r.Keys {
			if c.Values == nil {
				fmt.Fprint(t, "as it is\t")
			} else {
				fmt.Fprintf(t, "%s\t", c.Values[i])
			}
		}
		if math.IsInf(float64(c.Loss), 0) {
			fmt.Fprintf(t, "%d\tdiverged\t-\t-\t%.0f s\t\t\n", c.Rounds, c.CPU)
			continue
		}
		fmt.Fprintf(t, "%d\t%.5f\t%.3f\t%.3f\t%.0f s\t", c.Rounds, c.Loss, c.Mean, c.Median, c.CPU)
		switch {
		case c.Stage < last:
			fmt.Fprint(t, "stopped\t\n")
		case c.Given:
			fmt.Fprint(t, "given\t\n")
		default:
			fmt.Fprintf(t, "%+.1f %%\t%s\n", 100*c.Change, bar(float64(c.Change/most)))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n%s of CPU time\n", r.Verdict(), seconds(float64(r.CPU)))
	return err
}

// bar draws a share from -1 to 1, to the left or to the right of a line.
func bar(share float64) string {
	const width = 10
	n := int(math.Round(math.Abs(share) * width))
	if share < 0 {
		return " " + strings.Repeat(" ", width-n) + strings.Repeat("█", n) + "│"
	}
	return " " + strings.Repeat(" ", width) + "│" + strings.Repeat("░", min(n, width))
}

// write writes the table and the best plan to the folder of the search.
func (r *Tuned) write(dir string) error {
	err := disk.Write(filepath.Join(dir, "tune.csv"), func(f *os.File) error {
		w := csv.NewWriter(f)
		head := append(slices.Clone(r.Keys), "given", "stage", "rounds", "validation_loss", "change", "clients_lower", "relative_mae_mean", "relative_mae_median", "cpu_seconds")
		if err := w.Write(head); err != nil {
			return err
		}
		number := func(v metric.Number) string {
			if math.IsNaN(float64(v)) {
				return ""
			}
			return strconv.FormatFloat(float64(v), 'g', 8, 64)
		}
		for _, c := range r.Candidates {
			row := slices.Clone(c.Values)
			if row == nil {
				row = make([]string, len(r.Keys))
			}
			row = append(row, strconv.FormatBool(c.Given), strconv.Itoa(c.Stage+1), strconv.Itoa(c.Rounds),
				number(c.Loss), number(c.Change), number(c.Lower), number(c.Mean), number(c.Median), number(c.CPU))
			if err := w.Write(row); err != nil {
				return err
			}
		}
		w.Flush()
		return w.Error()
	})
	if err != nil {
		return err
	}
	return disk.Write(filepath.Join(dir, "best.yaml"), func(f *os.File) error { _, err := f.Write(r.Plan); return err })
}
