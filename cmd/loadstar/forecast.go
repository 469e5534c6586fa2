package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// forecastOptions are the flags of the command.
type forecastOptions struct {
	data, root, at, h, levels, calibrate, fit, fallback, out, chart, inputs string
	asJSON, quiet, strict                                                   bool
	c                                                                       outlook.Config
}

func newForecast() *cobra.Command {
	var o forecastOptions
	cmd := &cobra.Command{
		Use:   "forecast [MODEL]",
		Short: "Forecast the next hours of every meter",
		Long: `Forecast the next hours of every meter.

Without MODEL, the built-in model forecasts the next 24 hours of any meter with
at least a day of readings, up to an hour apart. The built-in model needs no
training, but a model that was trained on your meters forecasts better.

MODEL is the folder of a run, or its shared.safetensors with plan.yaml next to
it. The forecasts use only readings before the cutoff (--at). Weather after the
cutoff is used as if it had been forecast.

With -o, the rows of the forecasts are written as CSV, Parquet or JSON:
unique_id, cutoff, ds (start of the step, UTC), quantiles such as P10, P50 and
P90 in kW, mean, model, version, source, quality, reason, generated. If the
model cannot forecast a row, the row comes from a simpler source, such as the
load at the same time last week. The column source names the source, and the
column reason states why it was used. Add up only means, because quantiles do
not add up.

With --days, the energy of each day (kWh) and the peak of the next 24 hours (kW)
are written as CSV: unique_id, cutoff, quantity (energy or peak), ds (start of
the day, or of the step that is most likely the highest, UTC), mean, P10, P50,
P90. Energies and peaks are separate forecasts, with their own intervals.

With --paths 50 every row has 50 more columns, path1 to path50. Each of these
columns is one possible course of the load. It is consistent with the quantiles
at every step and with the usual correlation of forecast errors between steps.
The sums or maxima of these courses give the distribution of a sum or a peak
over any hours.

A meter that did not take part in the run gets personal layers that are fitted
to its own readings (see --fit-head). Intervals and corrections continue from
the state in the run's folder, or are learned from the errors of replayed
earlier forecasts (--calibrate sets the number of days).

The exit code is 1 if no meter has a forecast. With --strict, the exit code is 3
if a row is not from the model.`,
		Example: "  loadstar forecast --data mydata -o tomorrow.csv\n" +
			"  loadstar forecast runs/day-ahead --data mydata -o tomorrow.csv --h 24\n" +
			"  loadstar forecast runs/day-ahead --data mydata --chart=b103 --client b103",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *forecastOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.data, "data", "", cli.DatasetUsage)
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringVar(&o.h, "h", "", "how far to forecast: "+cli.HoursUsage+" (default as far as the model forecasts)")
	f.StringVar(&o.at, "at", "", "cutoff, such as 2026-11-15T14:00:00Z; a time without an offset is on the dataset's clock (default the end of each meter's newest reading)")
	f.StringVar(&o.levels, "levels", "0.1,0.5,0.9", "quantiles")
	f.StringSliceVar(&o.c.Clients, "client", nil, "forecast only this meter; may be repeated")
	f.StringVarP(&o.out, "out", "o", "", "write the rows to this .csv, .parquet or .json file; - is CSV on standard output")
	f.StringVar(&o.c.Days, "days", "", "write the energy of each day and the peak of the next 24 hours to this .csv file")
	f.IntVar(&o.c.Paths, "paths", 0, "number of joint scenarios to write in addition to the quantiles, such as 50; scenarios take longer")
	f.StringVar(&o.inputs, "inputs", "", "write the model's inputs and its own forecasts to this .safetensors file, for Python")
	f.StringVar(&o.calibrate, "calibrate", "", "days of earlier forecasts from which intervals and corrections are learned, such as 28d (default the state in the run's folder, or 63d)")
	f.StringVar(&o.fit, "fit-head", "auto", "number of training steps that fit personal layers to a meter without them: auto (200), never or a number")
	f.StringVar(&o.fallback, "fallback", "generic", "source of rows that the run's model cannot forecast: generic (the built-in model), week (the median of 28 days, or last week's load) or extreme-day (the day with the highest peak of the last 28 days)")
	f.StringVar(&o.chart, "chart", "", "draw the forecast of this meter (--chart=ID), or the sum of all meters")
	f.Lookup("chart").NoOptDefVal = chartSum
	f.IntVar(&o.c.Workers, "workers", runtime.NumCPU(), "number of meters to forecast in parallel")
	f.BoolVar(&o.asJSON, "json", false, "print the summary as JSON")
	f.BoolVar(&o.quiet, "quiet", false, "print no summary and no progress")
	f.BoolVar(&o.strict, "strict", false, "exit with code 3 if a row is not from the model")
}

// run forecasts.
func (o *forecastOptions) run(cmd *cobra.Command, args []string) error {
	if o.data == "" {
		return cli.NoData()
	}
	if os.Getenv("GOGC") == "" {
		// The live heap is small, so less frequent garbage collections need little additional
		// memory.
		debug.SetGCPercent(400)
	}
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), o.data, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	o.c.Dataset, o.c.Now = d, time.Now()
	if err := o.parse(d); err != nil {
		return err
	}
	if err := o.open(args); err != nil {
		return err
	}
	if o.c.Model != nil {
		defer o.c.Model.Close()
	}
	bar := cli.NewProgress(cmd.ErrOrStderr(), d.Len())
	if !o.quiet {
		o.c.Progress = func(done, _ int) { bar.Set(done, "") }
	}
	shown := o.chart
	if shown == chartSum {
		shown = ""
	}
	s, drawn, err := outlook.Write(cmd.Context(), o.c, o.out, cmd.OutOrStdout(), shown)
	bar.Stop()
	if err == nil && o.inputs != "" {
		err = o.c.Inputs.Write(o.inputs, o.c.Model)
	}
	if err != nil {
		return err
	}
	return o.print(cmd, s, drawn)
}

// parse parses the flags whose values are strings.
func (o *forecastOptions) parse(d *series.Dataset) (err error) {
	usage := func(flag string, err error) error { return cli.Usagef("--%s: %w", flag, err) }
	if o.c.FitSteps, err = outlook.ParseFit(o.fit, serve.FitSteps); err != nil {
		return usage("fit-head", err)
	}
	if o.calibrate != "" {
		if o.c.Calibrate, err = cli.ParseHours(o.calibrate); err != nil || o.c.Calibrate < 24*time.Hour {
			return usage("calibrate", fmt.Errorf("%q is not at least a day, such as 28d", o.calibrate))
		}
	}
	if o.h != "" {
		if o.c.H, err = cli.ParseSteps(o.h, d.Interval); err != nil {
			return usage("h", err)
		}
	}
	if o.c.Levels, err = outlook.ParseLevels(o.levels); err != nil {
		return usage("levels", err)
	}
	if o.at != "" {
		t, err := outlook.ParseTime(o.at, d.Clock)
		if err != nil {
			return usage("at", err)
		}
		o.c.At = t.Unix()
	}
	return nil
}

// open opens the run, if args name one, and the fallback.
func (o *forecastOptions) open(args []string) error {
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	o.c.Fallback = issue.Fallback(o.fallback)
	if o.fallback == "generic" {
		if o.c.Generic, err = serve.NewGeneric(k); err != nil {
			return err
		}
		o.c.Fallback = issue.LastWeek
	} else if len(args) == 0 {
		return cli.Usagef("--fallback %s needs the folder of a run", o.fallback)
	}
	if len(args) == 0 {
		if o.inputs != "" {
			return cli.Usagef("--inputs needs the folder of a run")
		}
		return nil
	}
	if o.inputs != "" {
		o.c.Inputs = &outlook.Inputs{}
	}
	o.c.Model, err = outlook.Open(args[0], o.c.Dataset, k)
	return err
}

// chartSum is the value of --chart without a meter.
const chartSum = "(sum of all meters)"

// print prints the summary and the chart, and returns the error for the exit code.
func (o *forecastOptions) print(cmd *cobra.Command, s *outlook.Summary, drawn issue.Forecast) error {
	var w io.Writer = cmd.OutOrStdout()
	if o.out == outlook.Stdout {
		w = cmd.ErrOrStderr() // the rows are on standard output
	}
	var err error
	switch {
	case o.asJSON:
		err = cli.PrintJSON(w, s)
	case !o.quiet:
		err = s.Print(w)
	}
	if err == nil && o.chart == chartSum {
		err = s.PrintSum(w)
	} else if err == nil && o.chart != "" {
		err = outlook.PrintChart(w, drawn, o.c.Dataset.Clock)
	}
	rows, fallbacks := s.Values()
	switch {
	case err != nil:
		return err
	case rows == 0:
		return fmt.Errorf("no meter has a forecast; %s", outlook.Span(o.c.Dataset))
	case o.strict && fallbacks > 0:
		return cli.Problems(fmt.Errorf("%d of %d rows are not from the model", fallbacks, s.Rows))
	}
	return nil
}
