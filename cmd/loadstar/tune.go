package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/experiment"
	"loadstar/nn/kernel"
)

// tuneOptions are the flags of the command.
type tuneOptions struct {
	data, root string
	sets       []string
	seeds      []uint
	t          experiment.Tuning
	asJSON     bool
}

func newTune() *cobra.Command {
	var o tuneOptions
	cmd := &cobra.Command{
		Use:   "tune PLAN",
		Short: "Search for the best settings of a plan on validation data",
		Long: `Train a plan with every combination of the given values, and rank the
combinations by the mean loss of all clients on the whole validation split. The
table also shows the unchanged plan. The command does not read the test split,
so a test score of the best plan stays unbiased.

With --budget, the search uses about the given CPU time. If the whole grid needs
more, all plans are first trained for a third of their rounds (or a ninth, or a
27th), and only the best third of the plans is trained for three times as many
rounds. The unchanged plan is always trained for all its rounds.

The command writes the best plan (best.yaml), the table (tune.csv) and the
results of every training (results.json) to the folder --out. Run the command
again to continue an interrupted search, or with more values. Finished
trainings are not repeated.`,
		Example: "  loadstar tune plans/day-ahead.yaml --data datasets/sample \\\n" +
			"      --set client.lr=0.002,0.005 --set rounds=160,320 --budget 20m",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *tuneOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.data, "data", "", cli.DatasetUsage)
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringArrayVar(&o.sets, "set", nil, "`KEY=VALUES`: a setting of the plan and its values, separated by commas; may be repeated")
	f.DurationVar(&o.t.Budget, "budget", 0, "CPU time for the search, such as 20m (default the time that the whole grid needs)")
	f.UintSliceVar(&o.seeds, "seeds", nil, "seeds over which losses are averaged (default the plan's)")
	f.StringVar(&o.t.Dir, "out", "", "folder of the search (default runs/tune-NAME, with the plan's file name)")
	f.IntVar(&o.t.Parallel, "parallel", runtime.NumCPU(), "number of trainings in parallel")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
}

// run searches the settings of a plan.
func (o *tuneOptions) run(cmd *cobra.Command, args []string) error {
	switch {
	case o.data == "":
		return cli.NoData()
	case len(o.sets) == 0:
		return cli.Usagef("nothing to search: use --set, such as --set client.lr=0.002,0.005")
	case o.t.Parallel < 1 || o.t.Budget < 0:
		return cli.Usagef("--parallel must be at least 1, and --budget at least 0")
	}
	if err := o.parse(); err != nil {
		return err
	}
	plan, err := cli.ReadPlan(args[0], 0)
	if err != nil {
		return err
	}
	if o.t.Plan, err = os.ReadFile(args[0]); err != nil {
		return err
	}
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), o.data, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	if _, err := cli.ResolvePlan(cmd.ErrOrStderr(), plan, d.Interval); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if len(o.seeds) == 0 {
		o.t.Seeds = []uint64{plan.Seed}
	}
	if o.t.Kernel, err = kernel.Default(); err != nil {
		return err
	}
	if o.t.Dir == "" {
		o.t.Dir = filepath.Join("runs", "tune-"+strings.TrimSuffix(filepath.Base(args[0]), filepath.Ext(args[0])))
	}
	o.t.Dataset, o.t.DataPath = d, o.data
	return o.search(cmd)
}

// parse reads the values of --set and --seeds.
func (o *tuneOptions) parse() error {
	for _, s := range o.sets {
		a, err := experiment.ParseAxis(s)
		if err != nil {
			return cli.Usagef("--set: %w", err)
		}
		o.t.Axes = append(o.t.Axes, a)
	}
	for _, s := range o.seeds {
		o.t.Seeds = append(o.t.Seeds, uint64(s))
	}
	return nil
}

// search runs the search and prints its table.
func (o *tuneOptions) search(cmd *cobra.Command) error {
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	defer bar.Stop()
	o.t.Progress = func(stage, done, of int) { bar.Set(done, of, fmt.Sprintf(" trainings of stage %d", stage+1)) }
	cli.CollectOften()
	r, err := o.t.Run(cmd.Context())
	if err != nil {
		if cmd.Context().Err() != nil {
			bar.Stop()
			fmt.Fprintln(cmd.ErrOrStderr(), "run the same command again to continue the search")
		}
		return err
	}
	bar.Stop()
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), r)
	}
	w := cmd.OutOrStdout()
	if err := r.Print(w); err != nil {
		return err
	}
	best := filepath.Join(o.t.Dir, "best.yaml")
	_, err = fmt.Fprintf(w, "best plan: %s; score it on the test split with loadstar simulate %s --data %s\n", best, best, o.data)
	return err
}
