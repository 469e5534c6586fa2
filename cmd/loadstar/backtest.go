package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/forecast"
	"loadstar/lab/backtest"
	"loadstar/lab/outlook"
	"loadstar/metric"
	"loadstar/nn/kernel"
	"loadstar/series"
)

var partNames = map[string]series.Part{"train": series.Train, "validation": series.Validation, "test": series.Test, "all": series.All}

func newBacktest() *cobra.Command {
	var (
		data, models                []string
		root, part, out, reference  string
		ahead                       string
		horizon, stride, workers    int
		asJSON, markdown, byClients bool
		remove, weather             string
		removed                     outlook.Removal
		block                       time.Duration
	)
	var (
		list  strings.Builder
		names []string
	)
	for _, b := range forecast.Baselines() {
		fmt.Fprintf(&list, "  %-14s %s\n", b.Name, b.About)
		names = append(names, b.Name)
	}
	cmd := &cobra.Command{
		Use:   "backtest",
		Short: "Backtest baseline forecasters or a trained run on historical data",
		Long: `Backtest baseline forecasters on historical data. Each baseline is fitted to the
first 80 % of every client's series (the training split). Its forecasts are
scored on another split, by default the last 10 % (the test split). A window
counts only if the load of the 168 hours before is complete, so that all
baselines forecast the same windows.

` + list.String() + `
With --horizon L each forecast is a single value, L steps after the last known
load. With --h H it covers all of the next H hours. The relative MAE is the mean
absolute error divided by that of a reference forecast of the same targets; a
value below 1 is better than the reference. The reference is the last known load
for one step, one step ahead, and otherwise the load at the same time a week
before; --reference chooses it. Errors are in kW.

If --model is the folder of a run, the forecasts that loadstar forecast would have
issued are scored instead, one every 6 hours over the test split, with corrections
and intervals that use only what was known then. The command prints the error,
how often loads are between P10 and P90, and where the forecasts come from. The
scores of energies, sums and peaks are kept in the run's folder for its report.
--remove removes readings first, to show the effect of gaps; the forecasts are still
compared with all readings. The weather counts as a forecast without error;
--weather-error 2 gives the temperature an error of 2 degrees 24 hours ahead and
half of it an hour ahead, and --weather-error yesterday uses no weather forecast.

With --out every forecast is written to a CSV or Parquet file, with the columns
unique_id, cutoff, ds, y and one named after the model.`,
		Example: "  loadstar backtest --data datasets/sample --model all\n" +
			"  loadstar backtest --data datasets/sgsc-core19.yaml --model ridge-rich \\\n      --h 24 --out forecasts.parquet\n" +
			"  loadstar backtest --data mydata --model runs/day-ahead --remove 2%",
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, ok := partNames[part]
			switch {
			case !ok:
				return cli.Usagef("--part must be train, validation, test or all, not %q", part)
			case len(data) == 0:
				return cli.NoData()
			case len(models) == 0:
				return cli.Usagef("no model: use --model with all, or with some of %s", strings.Join(names, ", "))
			case horizon < 1 || ahead != "" && horizon > 1:
				return cli.Usagef("use --horizon, at least 1, for one value or --h for several steps, not both")
			case stride < 0:
				return cli.Usagef("--stride must not be negative")
			case out != "" && (len(data) > 1 || len(models) > 1 || models[0] == "all"):
				return cli.Usagef("--out needs exactly one model and one dataset")
			}
			if _, err := os.Stat(models[0]); err == nil && len(models) == 1 && !slices.Contains(names, models[0]) {
				if removed.Share, err = outlook.ParseShare(remove); err != nil {
					return cli.Usagef("--remove: %w", err)
				}
				wrong, err := outlook.ParseWeatherError(weather)
				if err != nil {
					return cli.Usagef("--weather-error: %w", err)
				}
				if block != 0 && removed.Share == 0 {
					return cli.Usagef("--block needs --remove, such as --remove 2%%")
				}
				for _, path := range data {
					b := outlook.Backtest{Remove: removed, Weather: wrong, Workers: workers}
					if err := backtestRun(cmd, b, models[0], path, root, ahead, block, asJSON, byClients); err != nil {
						return err
					}
				}
				return nil
			}
			if slices.Contains(models, "all") {
				models = names
			}
			for _, m := range models {
				if _, err := os.Stat(m); err == nil && !slices.Contains(names, m) {
					return cli.Usagef("--model %s is a file or folder: name one run, and no baseline beside it", m)
				} else if !slices.Contains(names, m) {
					return cli.Usagef("--model %s is neither a baseline nor the folder of a run; baselines are %s", m, strings.Join(names, ", "))
				}
			}
			var results []backtest.Result
			for _, path := range data {
				d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), path, root)
				if err != nil {
					return err
				}
				h, err := aheadSteps(ahead, d)
				if err != nil {
					closer.Close()
					return err
				}
				b := forecast.Backtest{
					Dataset: d, Horizon: horizon, Targets: max(h, 1), Stride: cmp.Or(stride, cli.Stride(max(h, 1), d.Interval)), Split: series.DefaultSplit, Part: p,
					Reference: forecast.Reference(reference), Workers: workers,
				}
				var fleets []metric.Fleet
				for _, m := range models {
					r, err := backtest.Run(cmd.Context(), b, m, out)
					if err != nil {
						closer.Close()
						return err
					}
					r.Part, r.Horizon, r.H, r.Mark = part, horizon, h, cli.GeneratedMark(d.Generated)
					results, fleets = append(results, r), append(fleets, r.Fleet)
				}
				err = backtest.Enough(d, b, fleets...)
				closer.Close()
				if err != nil {
					return err
				}
			}
			w := cmd.OutOrStdout()
			switch {
			case asJSON && len(results) == 1:
				return cli.PrintJSON(w, results[0])
			case asJSON:
				return cli.PrintJSON(w, results)
			case markdown:
				return backtest.PrintMarkdown(w, results)
			}
			return backtest.Print(w, results, byClients)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&data, "data", nil, cli.DatasetUsage+"; may be repeated")
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.StringSliceVar(&models, "model", nil, "baseline, or all; may be repeated. Or the folder of a run")
	f.StringVar(&remove, "remove", "0%", "share of the readings to remove before a run is scored, such as 2%")
	f.StringVar(&weather, "weather-error", "0", "degrees by which the temperature that a run uses is wrong 24 hours ahead, or yesterday")
	f.DurationVar(&block, "block", 0, "remove readings in blocks of this length, such as 6h (default single readings)")
	f.Uint64Var(&removed.Seed, "seed", 1, "seed for the readings to remove")
	f.IntVar(&horizon, "horizon", 1, "forecast one value, `N` steps after the last known load")
	f.StringVar(&ahead, "h", "", "forecast all of the next `H` hours, or a duration such as 30m or 2d")
	f.IntVar(&stride, "stride", 0, "steps between scored origins (default 1, or those of 6 hours with --h)")
	f.StringVar(&part, "part", "test", "split to score: train, validation, test or all")
	f.StringVar(&reference, "reference", string(forecast.Auto), "forecast to which the relative MAE refers: auto, last-value, last-day or last-week")
	f.StringVar(&out, "out", "", "write every forecast to this .csv or .parquet file")
	f.IntVar(&workers, "workers", runtime.NumCPU(), "number of clients to process in parallel")
	f.BoolVar(&byClients, "clients", false, "print one row per client")
	f.BoolVar(&asJSON, "json", false, "print JSON: one object, or a list for several datasets or models")
	f.BoolVar(&markdown, "markdown", false, "print Markdown tables")
	return cmd
}

// aheadSteps returns the number of steps that --h means for a dataset, or 0 without --h.
func aheadSteps(ahead string, d *series.Dataset) (int, error) {
	if ahead == "" {
		return 0, nil
	}
	h, err := cli.ParseSteps(ahead, d.Interval)
	if err != nil {
		return 0, cli.Usagef("--h: %w", err)
	}
	return h, nil
}

// backtestRun scores the forecasts of a run on a dataset.
func backtestRun(cmd *cobra.Command, b outlook.Backtest, model, path, root, ahead string, block time.Duration, asJSON, byClients bool) error {
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), path, root)
	if err != nil {
		return err
	}
	defer closer.Close()
	if b.H, err = aheadSteps(ahead, d); err != nil {
		return err
	}
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	if b.Model, err = outlook.Open(model, d, k); err != nil {
		return err
	}
	defer b.Model.Close()
	if block < 0 || block%d.Interval != 0 {
		return cli.Usagef("--block: %s is not a multiple of the interval of the readings, %s", block, d.Interval)
	}
	b.Dataset, b.Remove.Block = d, int(block/d.Interval)
	s, err := b.Run(cmd.Context())
	if err != nil {
		return err
	}
	if b.Remove.Share == 0 && b.Weather == (outlook.WeatherError{}) && ahead == "" {
		if err := s.Keep(model); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "not kept for a report: %v\n", err)
		}
	}
	if asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), s)
	}
	return s.Print(cmd.OutOrStdout(), byClients)
}
