package main

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/experiment"
	"loadstar/nn/kernel"
	"loadstar/series"
)

func newCompare() *cobra.Command {
	var (
		data, plans, baselines []string
		seeds                  []uint
		root, out, against     string
		rounds, parallel       int
		asJSON, markdown       bool
	)
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare plans and baselines on one or more datasets",
		Long: `Compare plans and baselines on one or more datasets. The command trains every
plan on every dataset and scores it on the test split. The relative MAE is the
mean absolute error divided by that of a reference forecast of the same targets;
a value below 1 is better than the reference. The reference is the last known
load for plans that forecast one step, one step ahead, and otherwise the load at
the same time a week before. Baselines forecast as many steps ahead as the first
plan. With several seeds, the tables show means over the seeds and, for the
median, also the lowest and highest values.

With --against PLAN the tables also compare each plan with this one client by
client: the median ratio of their errors, the share of clients with a lower
error, and the shares with a significantly lower or higher error
(Diebold-Mariano test of the daily errors, 5 % level).

Runs are trained in parallel, one per core. If a comparison was interrupted, run
the command again to continue it. If it is finished, its tables are printed
again.`,
		Example: "  loadstar compare --data datasets/hog-core42.yaml \\\n" +
			"      --plan plans/local.yaml,plans/plfl-head.yaml --baseline persistence,ridge",
		RunE: func(cmd *cobra.Command, _ []string) error {
			usage := func(format string, a ...any) error { return usageError{fmt.Errorf(format, a...), "compare "} }
			switch {
			case len(data) == 0 || len(plans)+len(baselines) == 0:
				return usage("nothing to compare: use --data, and --plan or --baseline or both")
			case parallel < 1 || rounds < 0:
				return usage("--parallel must be at least 1, and --rounds at least 0")
			}
			k, err := kernel.Default()
			if err != nil {
				return err
			}
			var contests []experiment.Contest
			for _, path := range data {
				d, closer, err := openDataset(path, root)
				if err != nil {
					return err
				}
				defer closer.Close()
				c, err := contest(d, path, plans, seeds, rounds)
				if err != nil {
					return err
				}
				c.Baselines, c.Against = baselines, against
				contests = append(contests, c)
			}
			bar := stages{to: cmd.ErrOrStderr()}
			defer bar.stop()
			e := &experiment.Experiment{
				Dir: out, Kernel: k, Parallel: parallel,
				Progress: func(done, of int) { bar.set(done, of, "") },
			}
			collectOften()
			table, err := e.Compare(cmd.Context(), contests)
			if err != nil {
				return err
			}
			switch w := cmd.OutOrStdout(); {
			case asJSON:
				return printJSON(w, table)
			case markdown:
				return markdownComparison.print(w, table, against)
			default:
				t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
				if err := textComparison.print(t, table, against); err != nil {
					return err
				}
				return t.Flush()
			}
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&data, "data", nil, datasetUsage+"; may be repeated")
	f.StringVar(&root, "root", "", rootUsage)
	f.StringSliceVar(&plans, "plan", nil, "plan to train; may be repeated")
	f.StringSliceVar(&baselines, "baseline", nil, "baseline, as in loadstar backtest; may be repeated")
	f.UintSliceVar(&seeds, "seeds", []uint{1}, "seeds that replace those of the plans")
	f.StringVar(&against, "against", "", "compare the other plans with this one client by client; `PLAN` is its file name without .yaml")
	f.IntVar(&rounds, "rounds", 0, "number of rounds, except for pooled training (default each plan's)")
	f.StringVar(&out, "out", "runs/compare", "folder for the runs")
	f.IntVar(&parallel, "parallel", runtime.NumCPU(), "number of runs in parallel")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&markdown, "markdown", false, "print Markdown tables")
	return cmd
}

// contest returns the comparison of the given plans. It reads each plan file once for every
// seed.
func contest(d *series.Dataset, path string, plans []string, seeds []uint, rounds int) (c experiment.Contest, err error) {
	c.Dataset = d
	c.Question = &fed.Plan{Model: fed.Model{Horizon: 1, Targets: 1, Split: fed.Split(series.DefaultSplit)}}
	for i, file := range plans {
		m := experiment.Contestant{Method: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))}
		for _, seed := range seeds {
			p, err := readPlan(file, path, 0)
			if err != nil {
				return c, err
			}
			// --rounds does not apply to pooled training, because a round of it has many
			// more steps than a client's round.
			if rounds > 0 && !recipe.Pooled(p) {
				p.Rounds = rounds
			}
			p.Seed = uint64(seed)
			m.Plans = append(m.Plans, p)
			if i == 0 {
				c.Question = p
			}
		}
		c.Methods = append(c.Methods, m)
	}
	return c, nil
}

// medianOf formats the median of the scores, followed by their range if there are several
// seeds.
func medianOf(c experiment.Compared) string {
	if c.Low == c.High {
		return fmt.Sprintf("%.3f", c.Median)
	}
	return fmt.Sprintf("%.3f (%.3f-%.3f)", c.Median, c.Low, c.High)
}

// comparisonFormat has the formats of a table of methods.
type comparisonFormat struct{ title, head, row, pairedHead, paired, unpaired, end string }

var (
	textComparison = comparisonFormat{
		title: "%s\n", head: "METHOD\tREL. MAE\tMEDIAN\tBELOW 1\tMAE kW\t", row: "%s\t%.3f\t%s\t%.0f %%\t%.3f\t",
		pairedHead: "RATIO\tWON\tBETTER\tWORSE\t", paired: "%.3f\t%.0f %%\t%.0f %%\t%.0f %%\t", unpaired: "\t\t\t\t", end: "\n",
	}
	markdownComparison = comparisonFormat{
		title: "\n%s\n\n", head: "| method | relative MAE mean | median | below 1 | MAE kW |", row: "| %s | %.3f | %s | %.0f %% | %.3f |",
		pairedHead: " ratio | won | better | worse |", paired: " %.3f | %.0f %% | %.0f %% | %.0f %% |", unpaired: " | | | |", end: "\n",
	}
)

func (f comparisonFormat) print(w io.Writer, table []experiment.Comparison, against string) error {
	for _, c := range table {
		title := fmt.Sprintf("%s: %s, errors relative to %s%s", c.Dataset, count(c.Clients, "client"), c.Reference, generatedMark(c.Generated))
		head := f.head
		if against != "" {
			title += "; the last columns compare with " + against
			head += f.pairedHead
		}
		fmt.Fprintf(w, f.title, title)
		fmt.Fprint(w, head, f.end)
		if strings.HasPrefix(head, "|") {
			fmt.Fprint(w, strings.Repeat("|---", strings.Count(head, "|")-1), "|", f.end)
		}
		for _, m := range c.Methods {
			fmt.Fprintf(w, f.row, m.Method, m.Mean, medianOf(m), 100*m.BelowOne, m.MAE)
			switch p := m.Paired; {
			case p != nil:
				fmt.Fprintf(w, f.paired, p.Ratio, 100*p.Won, 100*p.Better, 100*p.Worse)
			case against != "":
				fmt.Fprint(w, f.unpaired)
			}
			if _, err := fmt.Fprint(w, f.end); err != nil {
				return err
			}
		}
	}
	return nil
}
