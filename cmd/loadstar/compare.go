package main

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/backtest"
	"loadstar/lab/experiment"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// compareOptions are the flags of the command.
type compareOptions struct {
	data, plans, baselines []string
	seeds, otherSeeds      []uint
	root, out              string
	subject, peers         string
	rounds, parallel       int
	asJSON, markdown       bool
}

func newCompare() *cobra.Command {
	var o compareOptions
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare plans and baselines on one or more datasets",
		Long: `Compare plans and baselines on one or more datasets. The command trains every
plan on every dataset and scores it on the test split. The relative MAE is the
mean absolute error divided by that of a reference forecast of the same targets;
a value below 1 is better than the reference. For plans that forecast only the
next step, the reference is the last known load. For all other plans, it is the
load at the same time a week before. Baselines forecast as many steps ahead as
the first plan. With several seeds, the tables show means over the seeds and,
for the median, also the lowest and highest values.

With --subject PLAN the tables also compare this plan, client by client, with
every other method: the median ratio of its error to that of the other method,
the share of clients with a lower error, and the shares with a significantly
lower or higher error (Diebold-Mariano test of the daily errors, 5 % level).
Days on which the two methods forecast different numbers of targets are
excluded.

Plans of the model dense are trained with model.gaps 0, so all methods forecast
the same targets.

Last week's profile, the rolling median and ridge-rich are shown with the plans,
unless --baseline names other baselines or none. If the parent folder of --out
contains a finished run of the same plan, seed and data, the command reuses this
run.

Runs are trained in parallel, one per core. If a comparison was interrupted, run
the command again to continue it. If a comparison is finished, the command
prints its tables again.`,
		Example: "  loadstar compare --data datasets/sample \\\n" +
			"      --plan plans/local.yaml,plans/plfl-head.yaml --baseline persistence,ridge",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *compareOptions) add(f *pflag.FlagSet) {
	f.StringSliceVar(&o.data, "data", nil, cli.DatasetUsage+"; may be repeated")
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringSliceVar(&o.plans, "plan", nil, "plan to train; may be repeated")
	f.StringSliceVar(&o.baselines, "baseline", backtest.Default, "baseline, as in loadstar backtest, or none; may be repeated")
	f.UintSliceVar(&o.seeds, "seeds", []uint{1}, "seeds that replace those of the plans")
	f.UintSliceVar(&o.otherSeeds, "other-seeds", nil, "seeds of the plans other than the subject (default --seeds)")
	f.StringVar(&o.subject, "subject", "", "compare this plan with all other methods client by client; `PLAN` is its file name without .yaml")
	f.StringVar(&o.peers, "peers", "", "`FOLDER` with results of loadstar-lab bench skill to show with the baselines")
	f.IntVar(&o.rounds, "rounds", 0, "number of rounds, except for pooled training (default each plan's)")
	f.StringVar(&o.out, "out", "runs/compare", "folder for the runs")
	f.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "number of runs in parallel")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	f.BoolVar(&o.markdown, "markdown", false, "print Markdown tables")
}

// run compares the plans and baselines.
func (o *compareOptions) run(cmd *cobra.Command) error {
	switch {
	case len(o.plans) == 0 && !cmd.Flags().Changed("baseline"):
		return cli.Usagef("nothing to compare: use --plan or --baseline or both")
	case len(o.data) == 0:
		return cli.NoData()
	case o.parallel < 1 || o.rounds < 0:
		return cli.Usagef("--parallel must be at least 1, and --rounds at least 0")
	}
	if err := checkBaselines(o.baselines); err != nil {
		return err
	}
	if slices.Equal(o.baselines, []string{"none"}) {
		o.baselines = nil
	}
	var contests []experiment.Contest
	for _, path := range o.data {
		d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), path, o.root)
		if err != nil {
			return err
		}
		defer closer.Close()
		c, err := contest(cmd.ErrOrStderr(), d, o.plans, o.rounds, func(method string) []uint {
			if len(o.otherSeeds) > 0 && method != o.subject {
				return o.otherSeeds
			}
			return o.seeds
		})
		if err != nil {
			return err
		}
		c.DataPath, c.Baselines, c.Subject, c.Peers = path, o.baselines, o.subject, o.peers
		contests = append(contests, c)
	}
	return o.compare(cmd, contests)
}

// compare trains and scores the missing runs, and prints the tables.
func (o *compareOptions) compare(cmd *cobra.Command, contests []experiment.Contest) error {
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	defer bar.Stop()
	e := &experiment.Experiment{
		Dir: o.out, Kernel: k, Parallel: o.parallel,
		Progress: func(done, of int) { bar.Set(done, of, "") },
		Reuse:    filepath.Dir(o.out),
		Reused: func(from, to string) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: reused %s, a finished run of the same plan, seed and data\n", to, from)
		},
	}
	cli.CollectOften()
	table, err := e.Compare(cmd.Context(), contests)
	if err != nil {
		return err
	}
	switch w := cmd.OutOrStdout(); {
	case o.asJSON:
		return cli.PrintJSON(w, table)
	case o.markdown:
		return experiment.WriteMarkdown(w, table, o.subject)
	default:
		if err := experiment.Print(w, table, o.subject); err != nil || len(o.plans) == 0 {
			return err
		}
		_, err := fmt.Fprintln(w, reportHint(o.out))
		return err
	}
}

// contest returns the comparison of the given plans. It reads each plan file once for every
// seed.
func contest(notice io.Writer, d *series.Dataset, plans []string, rounds int, seeds func(method string) []uint) (c experiment.Contest, err error) {
	c.Dataset = d
	c.Question = &fed.Plan{Model: fed.Model{Horizon: fed.Steps(1), Targets: fed.Steps(1), Split: fed.Split{Train: series.DefaultSplit.Train, Validation: series.DefaultSplit.Validation}}}
	for i, file := range plans {
		m := experiment.Contestant{Method: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))}
		for _, seed := range seeds(m.Method) {
			p, err := cli.ReadPlan(file, 0)
			if err != nil {
				return c, err
			}
			warn := notice
			if len(m.Plans) > 0 {
				warn = io.Discard // the warning is the same for every seed
			}
			if p, err = cli.ResolvePlan(warn, p, d.Interval); err != nil {
				return c, fmt.Errorf("%s: %w", file, err)
			}
			// --rounds does not apply to pooled training, because one of its rounds has many
			// more steps than a client's round.
			if rounds > 0 && !recipe.Pooled(p) {
				p.Rounds = rounds
			}
			p.Seed = uint64(seed)
			p.Model.Gaps = 0 // baselines make forecasts only from complete histories
			m.Plans = append(m.Plans, p)
			if i == 0 {
				c.Question = p
			}
		}
		c.Methods = append(c.Methods, m)
	}
	return c, nil
}
