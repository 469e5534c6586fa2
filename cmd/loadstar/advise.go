package main

import (
	"cmp"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/experiment"
	"loadstar/nn/kernel"
)

// adviseOptions are the flags of the command.
type adviseOptions struct {
	data, root string
	a          experiment.Advising
	asJSON     bool
}

func newAdvise() *cobra.Command {
	var o adviseOptions
	cmd := &cobra.Command{
		Use:   "advise",
		Short: "Estimate the benefit of training your meters together",
		Long: `Estimate the benefit of a federation. The command trains the given meters alone
and together, with 14, 28, 91 and 364 days of history if available, and tests
all models on the same last 28 days. The column ALONE shows the lower error of a
short and a long training. The column SIMPLE shows the lowest error of three
simple forecasts.

GAIN is the change of the median client's error, relative to the better of ALONE
and SIMPLE. The 95 % interval shows how the gain depends on the choice of
clients. TRAFFIC and CPU are the costs per client and training. If the interval
includes 0, the verdict is "do not bother".

At least 3 meters are needed, and at most 100 are used. The command reads the
test split of the data, so do not use its result to tune a plan.`,
		Example: "  loadstar advise --data datasets/sample",
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *adviseOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.data, "data", "", cli.DatasetUsage)
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringVar(&o.a.Targets, "h", "24h", "how far to forecast, as a duration such as 24h")
	f.IntVar(&o.a.Rounds, "rounds", 120, "number of rounds")
	f.StringVar(&o.a.Dir, "out", "", "folder for the runs (default runs/advise-NAME, with the dataset's name)")
	f.IntVar(&o.a.Parallel, "parallel", runtime.NumCPU(), "number of runs in parallel")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
}

// run estimates the benefit of training together.
func (o *adviseOptions) run(cmd *cobra.Command) error {
	switch {
	case o.data == "":
		return cli.NoData()
	case o.a.Rounds < 1 || o.a.Parallel < 1:
		return cli.Usagef("--rounds and --parallel must be at least 1")
	}
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), o.data, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	if _, err := cli.ParseSteps(o.a.Targets, d.Interval); err != nil {
		return cli.Usagef("--h: %w", err)
	}
	if o.a.Kernel, err = kernel.Default(); err != nil {
		return err
	}
	o.a.Dir = cmp.Or(o.a.Dir, filepath.Join("runs", "advise-"+d.Name))
	o.a.Dataset = d
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	defer bar.Stop()
	o.a.Progress = func(done, of int) { bar.Set(done, of, "") }
	cli.CollectOften()
	r, err := o.a.Run(cmd.Context())
	if err != nil {
		return err
	}
	bar.Stop()
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), r)
	}
	return r.Print(cmd.OutOrStdout())
}
