package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/experiment"
	"loadstar/nn/kernel"
)

func newTune() *cobra.Command {
	var (
		data, root string
		sets       []string
		seeds      []uint
		t          experiment.Tuning
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "tune PLAN",
		Short: "Search settings of a plan on validation data",
		Long: `Train a plan with every combination of the given values, and rank the combinations
by the mean loss of all clients on the whole validation split. The plan as it is
stands beside them. The test split is not read, so that a test score of the best
plan stays honest.

With --budget the search uses about as much CPU time. If the whole grid needs
more, all plans are first trained with a third of their rounds (or a ninth, or a
27th), and only the best third of them goes on to three times as many. The plan
as it is is always trained in full.

The folder --out gets the best plan (best.yaml), the table (tune.csv) and the
results of every training (results.json). Run the command again to continue an
interrupted search, or with more values: finished trainings are not repeated.`,
		Example: "  loadstar tune plans/day-ahead.yaml --data datasets/sample \\\n" +
			"      --set client.lr=0.002,0.005 --set rounds=160,320 --budget 20m",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case data == "":
				return cli.NoData()
			case len(sets) == 0:
				return cli.Usagef("nothing to search: use --set, such as --set client.lr=0.002,0.005")
			case t.Parallel < 1 || t.Budget < 0:
				return cli.Usagef("--parallel must be at least 1, and --budget at least 0")
			}
			for _, s := range sets {
				a, err := experiment.ParseAxis(s)
				if err != nil {
					return cli.Usagef("--set: %w", err)
				}
				t.Axes = append(t.Axes, a)
			}
			plan, err := cli.ReadPlan(args[0], 0)
			if err != nil {
				return err
			}
			if t.Plan, err = os.ReadFile(args[0]); err != nil {
				return err
			}
			d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), data, root)
			if err != nil {
				return err
			}
			defer closer.Close()
			if _, err := cli.ResolvePlan(cmd.ErrOrStderr(), plan, d.Interval); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			for _, s := range seeds {
				t.Seeds = append(t.Seeds, uint64(s))
			}
			if len(seeds) == 0 {
				t.Seeds = []uint64{plan.Seed}
			}
			if t.Kernel, err = kernel.Default(); err != nil {
				return err
			}
			if t.Dir == "" {
				t.Dir = filepath.Join("runs", "tune-"+strings.TrimSuffix(filepath.Base(args[0]), filepath.Ext(args[0])))
			}
			t.Dataset, t.DataPath = d, data
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			defer bar.Stop()
			t.Progress = func(stage, done, of int) { bar.Set(done, of, fmt.Sprintf(" trainings of stage %d", stage+1)) }
			cli.CollectOften()
			r, err := t.Run(cmd.Context())
			if err != nil {
				if cmd.Context().Err() != nil {
					bar.Stop()
					fmt.Fprintln(cmd.ErrOrStderr(), "run the same command again to continue the search")
				}
				return err
			}
			bar.Stop()
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), r)
			}
			w := cmd.OutOrStdout()
			if err := r.Print(w); err != nil {
				return err
			}
			best := filepath.Join(t.Dir, "best.yaml")
			_, err = fmt.Fprintf(w, "best plan: %s; score it on the test split with loadstar simulate %s --data %s\n", best, best, data)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", cli.DatasetUsage)
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.StringArrayVar(&sets, "set", nil, "`KEY=VALUES`: a setting of the plan and its values, separated by commas; may be repeated")
	f.DurationVar(&t.Budget, "budget", 0, "CPU time for the search, such as 20m (default as much as the whole grid needs)")
	f.UintSliceVar(&seeds, "seeds", nil, "seeds over which losses are averaged (default the plan's)")
	f.StringVar(&t.Dir, "out", "", "folder of the search (default runs/tune-NAME, with the plan's file name)")
	f.IntVar(&t.Parallel, "parallel", runtime.NumCPU(), "number of trainings in parallel")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
