package main

import (
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
	"loadstar/rig/bench/skill"
)

// usesOptions are the flags of the command.
type usesOptions struct {
	data, weather     []string
	root, runs, peers string
	seeds             []uint
	peer              bool
}

func newUses() *cobra.Command {
	var o usesOptions
	cmd := &cobra.Command{
		Use:   "uses",
		Short: "Compare energies, sums and peaks of runs with other methods",
		Long: `Compare runs with other methods by their forecasts of daily energies, daily
peaks, and the sum of all clients at each step. The clients and days are the
same for all methods, and the results are Markdown tables. All forecasts are
issued at midnight for the next 24 hours, over the test split. The other methods
are last week's value, the rolling median and mean of 28 days, and ridge-rich,
fitted to the series of daily energies, of daily peaks and of sums. Results of
boosting with scikit-learn are read from FOLDER/DATASET-uses.tsv, where FOLDER
is the folder of --peers. With --peer, they are measured if there is no such
file.

The runs of a dataset are FOLDER/DATASET/PLAN-SEED, as loadstar compare writes
them, and PLAN is the name of the folder. With --weather-errors, the first seed
is also scored with errors in the weather forecast, as with 'loadstar backtest
--weather-error'.`,
		Example: "  loadstar-lab bench uses --data datasets/sample --runs runs/day-ahead --seeds 1",
		RunE:    o.run,
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.data, "data", nil, cli.DatasetUsage+"; may be repeated")
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringVar(&o.runs, "runs", "runs/comparison/day-ahead", "`FOLDER` of the runs")
	f.UintSliceVar(&o.seeds, "seeds", []uint{1, 2, 3}, "seeds of the runs")
	f.StringVar(&o.peers, "peers", "", "`FOLDER` with the results of boosting")
	f.BoolVar(&o.peer, "peer", false, "measure boosting with scikit-learn if --peers has no result")
	f.StringSliceVar(&o.weather, "weather-errors", nil, "also score the first seed with these weather errors, such as 1,2,3,yesterday")
	return cmd
}

func (o *usesOptions) run(cmd *cobra.Command, _ []string) error {
	if len(o.data) == 0 {
		return cli.NoData()
	}
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	var wrong []outlook.WeatherError
	for _, s := range o.weather {
		w, err := outlook.ParseWeatherError(s)
		if err != nil {
			return cli.Usagef("--weather-errors: %w", err)
		}
		wrong = append(wrong, w)
	}
	var all []skill.Group
	for n, path := range o.data {
		d, closer, err := cli.OpenDataset(path, o.root)
		if err != nil {
			return err
		}
		defer closer.Close()
		bar := cli.Stages{To: cmd.ErrOrStderr()}
		bar.Set(n, len(o.data), d.Name)
		g := skill.Group{Dataset: d, Weather: wrong, Peers: o.peers, Measure: o.peer, Kernel: k, Workers: runtime.NumCPU()}
		for _, seed := range o.seeds {
			g.Runs = append(g.Runs, filepath.Join(o.runs, d.Name, fmt.Sprintf("%s-%d", filepath.Base(o.runs), seed)))
		}
		err = g.Score(cmd.Context())
		bar.Stop()
		if err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		all = append(all, g)
	}
	return skill.WriteUses(cmd.OutOrStdout(), all)
}
