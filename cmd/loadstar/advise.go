package main

import (
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/experiment"
	"loadstar/nn/kernel"
)

func newAdvise() *cobra.Command {
	var (
		data, root string
		a          experiment.Advising
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "advise",
		Short: "Estimate what training together would bring your meters",
		Long: `Estimate what a federation would bring: train on the meters at hand, each alone and
all together, with 14, 28, 91 and 364 days of history as far as the data has
them, and test all on the same last 28 days. Alone is the better of a short and
a long training. The best of three simple forecasts stands beside them.

The gain is the change of the median client's error against the better of alone
and simple, with a 95 % interval over the choice of clients. Traffic and CPU time
are those of one client for one training. Where the interval reaches 0, the
verdict is "do not bother".

At least 3 meters are needed, and at most 100 are used. The test split of the
data is read: do not tune a plan by this.`,
		Example: "  loadstar advise --data datasets/sample",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case data == "":
				return cli.NoData()
			case a.Rounds < 1 || a.Parallel < 1:
				return cli.Usagef("--rounds and --parallel must be at least 1")
			}
			d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), data, root)
			if err != nil {
				return err
			}
			defer closer.Close()
			if _, err := cli.ParseSteps(a.Targets, d.Interval); err != nil {
				return cli.Usagef("--h: %w", err)
			}
			if a.Kernel, err = kernel.Default(); err != nil {
				return err
			}
			if a.Dir == "" {
				a.Dir = filepath.Join("runs", "advise-"+d.Name)
			}
			a.Dataset = d
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			defer bar.Stop()
			a.Progress = func(done, of int) { bar.Set(done, of, "") }
			cli.CollectOften()
			r, err := a.Run(cmd.Context())
			if err != nil {
				return err
			}
			bar.Stop()
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), r)
			}
			return r.Print(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", cli.DatasetUsage)
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.StringVar(&a.Targets, "h", "24h", "how far to forecast: a time such as 24h")
	f.IntVar(&a.Rounds, "rounds", 120, "number of rounds")
	f.StringVar(&a.Dir, "out", "", "folder for the runs (default runs/advise-NAME, with the dataset's name)")
	f.IntVar(&a.Parallel, "parallel", runtime.NumCPU(), "number of runs in parallel")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
