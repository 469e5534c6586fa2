package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"loadstar/internal/textfmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/forecast"
	"loadstar/lab/backtest"
	"loadstar/lab/outlook"
	"loadstar/metric"
	"loadstar/nn/kernel"
	"loadstar/series"
)

var partNames = map[string]series.Part{"train": series.Train, "validation": series.Validation, "test": series.Test, "all": series.All}

// backtestOptions are the flags of the command.
type backtestOptions struct {
	baselines                   []string // the names of all baselines
	data, models                []string
	root, part, out, reference  string
	ahead                       string
	horizon, stride, workers    int
	asJSON, markdown, byClients bool
	remove, weather             string
	removed                     outlook.Removal
	block                       time.Duration
}

func newBacktest() *cobra.Command {
	var o backtestOptions
	var list strings.Builder
	for _, b := range forecast.Baselines() {
		fmt.Fprintf(&list, "  %-14s %s\n", b.Name, b.About)
		o.baselines = append(o.baselines, b.Name)
	}
	cmd := &cobra.Command{
		Use:   "backtest",
		Short: "Backtest baseline forecasters or a trained run on historical data",
		Long: `Backtest baseline forecasters on historical data. Each baseline is fitted to the
first 80 % of every client's series (the training split). Its forecasts are
scored on another split, by default the last 10 % (the test split). A window
counts only if the load of the previous 168 hours is complete, so all baselines
forecast the same windows.

` + list.String() + `
With --horizon L each forecast is a single value, L steps after the last known
load. With --h H each forecast covers all of the next H hours. The relative MAE
is the mean absolute error divided by that of a reference forecast of the same
targets; a value below 1 is better than the reference. If only the next step is
forecast, the reference is the last known load. Otherwise, the reference is the
load at the same time a week before. --reference selects another reference.
Errors are in kW.

If --model is the folder of a run, the command scores the forecasts that
'loadstar forecast' would have issued every 6 hours over the test split. The
forecasts' corrections and intervals use only data that was known at the time.
The command prints the error, the share of loads between P10 and P90, and the
sources of the forecasts. The command also stores the scores of energies, sums
and peaks in the run's folder, for the run's report. --remove removes readings
first, to show the effect of gaps. The command still compares the forecasts with
all readings. By default, the measured weather is used as a weather forecast
without error. With --weather-error 2, the error of the temperature forecast has
a standard deviation of 2 degrees 24 hours ahead, and of 1 degree one hour
ahead. With --weather-error yesterday, the weather of the day before replaces
the forecast.

With --out every forecast is written to a CSV or Parquet file, with the columns
unique_id, cutoff, ds, y, and a column named after the model.`,
		Example: "  loadstar backtest --data datasets/sample --model all\n" +
			"  loadstar backtest --data datasets/sgsc-core19.yaml --model ridge-rich \\\n      --h 24 --out forecasts.parquet\n" +
			"  loadstar backtest --data mydata --model runs/day-ahead --remove 2%",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *backtestOptions) add(f *pflag.FlagSet) {
	f.StringSliceVar(&o.data, "data", nil, cli.DatasetUsage+"; may be repeated")
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringSliceVar(&o.models, "model", nil, "baselines (may be repeated), all for all baselines, or the folder of one run")
	f.StringVar(&o.remove, "remove", "0%", "share of the readings to remove before a run is scored, such as 2%")
	f.StringVar(&o.weather, "weather-error", "0", "for a run: standard deviation of the error of the temperature forecast 24 hours ahead, in degrees; or yesterday, for no weather forecast")
	f.DurationVar(&o.block, "block", 0, "remove readings in blocks of this length, such as 6h (default single readings)")
	f.Uint64Var(&o.removed.Seed, "seed", 1, "random seed that selects the readings to remove")
	f.IntVar(&o.horizon, "horizon", 1, "forecast one value, `N` steps after the last known load")
	f.StringVar(&o.ahead, "h", "", "forecast all of the next `H` hours, or a duration such as 30m or 2d")
	f.IntVar(&o.stride, "stride", 0, "steps between scored origins (default 1, or 6 hours with --h)")
	f.StringVar(&o.part, "part", "test", "split to score: train, validation, test or all")
	f.StringVar(&o.reference, "reference", string(forecast.Auto), "forecast to which the relative MAE refers: auto, last-value, last-day or last-week")
	f.StringVar(&o.out, "out", "", "write every forecast to this .csv or .parquet file")
	f.IntVar(&o.workers, "workers", runtime.NumCPU(), "number of clients to process in parallel")
	f.BoolVar(&o.byClients, "clients", false, "print one row per client")
	f.BoolVar(&o.asJSON, "json", false, "print JSON: one object, or a list for several datasets or models")
	f.BoolVar(&o.markdown, "markdown", false, "print Markdown tables")
}

// run backtests baselines or a run.
func (o *backtestOptions) run(cmd *cobra.Command) error {
	_, known := partNames[o.part]
	switch {
	case !known:
		return cli.Usagef("--part must be train, validation, test or all, not %q", o.part)
	case len(o.data) == 0:
		return cli.NoData()
	case len(o.models) == 0:
		return cli.Usagef("no model: use --model with all, or with some of %s", strings.Join(o.baselines, ", "))
	case o.horizon < 1 || o.ahead != "" && o.horizon > 1:
		return cli.Usagef("use --horizon, at least 1, for one value or --h for several steps, not both")
	case o.stride < 0:
		return cli.Usagef("--stride must not be negative")
	case o.out != "" && (len(o.data) > 1 || len(o.models) > 1 || o.models[0] == "all"):
		return cli.Usagef("--out needs exactly one model and one dataset")
	}
	if len(o.models) == 1 && o.isPath(o.models[0]) {
		return o.scoreRun(cmd)
	}
	if slices.Contains(o.models, "all") {
		o.models = o.baselines
	}
	for _, m := range o.models {
		if o.isPath(m) {
			return cli.Usagef("--model %s is a file or folder: name only one run, without baselines", m)
		} else if !slices.Contains(o.baselines, m) {
			return cli.Usagef("--model %s is neither a baseline nor the folder of a run; baselines are %s", m, strings.Join(o.baselines, ", "))
		}
	}
	var results []backtest.Result
	for _, path := range o.data {
		r, err := o.scoreBaselines(cmd, path)
		if err != nil {
			return err
		}
		results = append(results, r...)
	}
	w := cmd.OutOrStdout()
	switch {
	case o.asJSON && len(results) == 1:
		return cli.PrintJSON(w, results[0])
	case o.asJSON:
		return cli.PrintJSON(w, results)
	case o.markdown:
		return backtest.PrintMarkdown(w, results)
	}
	return backtest.Print(w, results, o.byClients)
}

// isPath reports whether --model names a file or folder. The name of a baseline never counts as
// a path.
func (o *backtestOptions) isPath(model string) bool {
	_, err := os.Stat(model)
	return err == nil && !slices.Contains(o.baselines, model)
}

// scoreBaselines backtests the baselines on one dataset.
func (o *backtestOptions) scoreBaselines(cmd *cobra.Command, path string) ([]backtest.Result, error) {
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), path, o.root)
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	h, err := o.steps(d)
	if err != nil {
		return nil, err
	}
	b := forecast.Backtest{
		Dataset: d, Horizon: o.horizon, Targets: max(h, 1), Stride: cmp.Or(o.stride, cli.Stride(max(h, 1), d.Interval)), Split: series.DefaultSplit, Part: partNames[o.part],
		Reference: forecast.Reference(o.reference), Workers: o.workers,
	}
	var results []backtest.Result
	var fleets []metric.Fleet
	for _, m := range o.models {
		r, err := backtest.Run(cmd.Context(), b, m, o.out)
		if err != nil {
			return nil, err
		}
		r.Part, r.Horizon, r.H, r.Mark = o.part, o.horizon, h, textfmt.Synthetic(d.Generated)
		results, fleets = append(results, r), append(fleets, r.Fleet)
	}
	return results, backtest.Enough(d, b, fleets...)
}

// steps returns the number of steps in the time given by --h, or 0 without --h.
func (o *backtestOptions) steps(d *series.Dataset) (int, error) {
	if o.ahead == "" {
		return 0, nil
	}
	h, err := cli.ParseSteps(o.ahead, d.Interval)
	if err != nil {
		return 0, cli.Usagef("--h: %w", err)
	}
	return h, nil
}

// scoreRun scores the forecasts of a run on the datasets.
func (o *backtestOptions) scoreRun(cmd *cobra.Command) (err error) {
	b := outlook.Backtest{Workers: o.workers}
	if o.removed.Share, err = outlook.ParseShare(o.remove); err != nil {
		return cli.Usagef("--remove: %w", err)
	}
	if b.Weather, err = outlook.ParseWeatherError(o.weather); err != nil {
		return cli.Usagef("--weather-error: %w", err)
	}
	if o.block != 0 && o.removed.Share == 0 {
		return cli.Usagef("--block needs --remove, such as --remove 2%%")
	}
	b.Remove = o.removed
	for _, path := range o.data {
		if err := o.scoreRunOn(cmd, b, path); err != nil {
			return err
		}
	}
	return nil
}

// scoreRunOn scores the forecasts of a run on one dataset.
func (o *backtestOptions) scoreRunOn(cmd *cobra.Command, b outlook.Backtest, path string) error {
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), path, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	if b.H, err = o.steps(d); err != nil {
		return err
	}
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	if b.Model, err = outlook.Open(o.models[0], d, k); err != nil {
		return err
	}
	defer b.Model.Close()
	if o.block < 0 || o.block%d.Interval != 0 {
		return cli.Usagef("--block: %s is not a multiple of the interval of the readings, %s", o.block, d.Interval)
	}
	b.Dataset, b.Remove.Block = d, int(o.block/d.Interval)
	s, err := b.Run(cmd.Context())
	if err != nil {
		return err
	}
	if b.Remove.Share == 0 && b.Weather == (outlook.WeatherError{}) && o.ahead == "" {
		if err := s.Keep(o.models[0]); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "not kept for a report: %v\n", err)
		}
	}
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), s)
	}
	return s.Print(cmd.OutOrStdout(), o.byClients)
}
