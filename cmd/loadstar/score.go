package main

import (
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/outlook"
	"loadstar/lab/score"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// scoreOptions are the flags of the command.
type scoreOptions struct {
	data, root, beside string
	workers            int
	asJSON             bool
}

func newScore() *cobra.Command {
	var o scoreOptions
	cmd := &cobra.Command{
		Use:   "score FILE...",
		Short: "Score forecasts of other programs, together with those of a run",
		Long: `Score forecasts of other programs, in CSV or Parquet files with the columns
unique_id, cutoff, ds, and one column for each forecast. These are the columns
that 'loadstar backtest --out' and cross_validation of Nixtla's libraries write.
Columns such as model-lo-80 and model-hi-80, or P10 and P90 in addition to P50,
are the bounds of an interval.

The loads come from the dataset. If a file has a column y, the command only
compares it with these loads, to detect wrong times. All methods are scored on
the forecasts that every file has, with the same cutoff. With --beside, the
command also scores the forecasts that a run would have issued at the same
cutoffs within the run's test split.

If at least one forecast in a file begins at its cutoff, the command takes the
file's cutoffs as the ends of the newest known intervals, and otherwise as their
starts. The command refuses forecasts with a cutoff after ds, because at such a
cutoff the load was already known. Times without an offset are in the dataset's
zone.

The relative MAE is the mean absolute error divided by that of a reference
forecast. The reference is the load at the same clock time a week before, or in
the newest week that was known at the cutoff.`,
		Example: "  loadstar score mine.csv --data datasets/sample --beside runs/day-ahead",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(cmd *cobra.Command, files []string) error { return o.run(cmd, files) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *scoreOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.data, "data", "", cli.DatasetUsage)
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringVar(&o.beside, "beside", "", "`folder` of a run whose forecasts the command also scores")
	f.IntVar(&o.workers, "workers", runtime.NumCPU(), "number of clients to forecast in parallel")
	f.BoolVar(&o.asJSON, "json", false, "print JSON, with the scores of every client")
}

// run scores forecasts.
func (o *scoreOptions) run(cmd *cobra.Command, files []string) error {
	if o.data == "" {
		return cli.NoData()
	}
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), o.data, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	var all []*score.Forecasts
	for _, path := range files {
		f, err := score.Read(path, d)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	if o.beside != "" {
		f, err := forecastsOf(cmd, o.beside, d, o.workers, all)
		if err != nil {
			return err
		}
		all = append([]*score.Forecasts{f}, all...)
	}
	r, err := score.Score(d, all)
	if err != nil {
		return err
	}
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), r)
	}
	return r.Print(cmd.OutOrStdout())
}

// forecastsOf returns the forecasts that a run would have made at the cutoffs of others.
func forecastsOf(cmd *cobra.Command, folder string, d *series.Dataset, workers int, others []*score.Forecasts) (*score.Forecasts, error) {
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	model, err := outlook.Open(folder, d, k)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	name, _ := model.Name()
	return score.OfRun(cmd.Context(), outlook.Backtest{Model: model, Dataset: d, Workers: workers}, name, others)
}
