package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

var partNames = map[string]series.Part{"train": series.Train, "validation": series.Validation, "test": series.Test, "all": series.All}

func newBacktest() *cobra.Command {
	var (
		data, models                []string
		root, part, out, reference  string
		horizon, h, workers         int
		asJSON, markdown, byClients bool
	)
	var (
		list  strings.Builder
		names []string
	)
	for _, b := range forecast.Baselines() {
		fmt.Fprintf(&list, "  %-12s %s\n", b.Name, b.About)
		names = append(names, b.Name)
	}
	cmd := &cobra.Command{
		Use:   "backtest",
		Short: "Backtest baseline forecasters on historical data",
		Long: `Backtest baseline forecasters on historical data. Each baseline is fitted to the
first 80 % of every client's series (the training split). Its forecasts are
scored on another split, by default the last 10 % (the test split).

` + list.String() + `
With --horizon L each forecast is a single value, L steps after the last known
load. With --h H it covers all of the next H steps. The relative MAE is the mean
absolute error divided by that of a reference forecast of the same targets; a
value below 1 is better than the reference. The reference is the last known load
for one step, one step ahead, and otherwise the load at the same time a week
before; --reference chooses it. Errors are in kW.

With --out every forecast is written to a CSV or Parquet file, with the columns
unique_id, cutoff, ds, y and one named after the model.`,
		Example: "  loadstar backtest --data datasets/hog-core42.yaml --model all\n" +
			"  loadstar backtest --data datasets/sgsc-core19.yaml --model ridge-rich \\\n      --h 24 --out forecasts.parquet",
		RunE: func(cmd *cobra.Command, _ []string) error {
			usage := func(format string, a ...any) error { return usageError{fmt.Errorf(format, a...), "backtest "} }
			p, ok := partNames[part]
			switch {
			case !ok:
				return usage("--part must be train, validation, test or all, not %q", part)
			case len(data) == 0:
				return usage("no dataset: use --data")
			case len(models) == 0:
				return usage("no model: use --model with all, or with some of %s", strings.Join(names, ", "))
			case h < 0 || horizon < 1 || h > 0 && horizon > 1:
				return usage("use --horizon for one value or --h for several steps, not both; each must be at least 1")
			case out != "" && (len(data) > 1 || len(models) > 1 || models[0] == "all"):
				return usage("--out needs exactly one model and one dataset")
			}
			if slices.Contains(models, "all") {
				models = names
			}
			var results []backtestResult
			for _, path := range data {
				d, closer, err := openDataset(path, root)
				if err != nil {
					return err
				}
				b := forecast.Backtest{
					Dataset: d, Horizon: horizon, Targets: max(h, 1), Split: series.DefaultSplit, Part: p,
					Reference: forecast.Reference(reference), Workers: workers,
				}
				for _, m := range models {
					r, err := runBacktest(cmd, b, m, out)
					if err != nil {
						closer.Close()
						return err
					}
					r.Part, r.Horizon, r.H = part, horizon, h
					results = append(results, r)
				}
				closer.Close()
			}
			w := cmd.OutOrStdout()
			switch {
			case asJSON && len(results) == 1:
				return printJSON(w, results[0])
			case asJSON:
				return printJSON(w, results)
			case markdown:
				return printBacktestMarkdown(w, results)
			}
			return printBacktest(w, results, byClients)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&data, "data", nil, datasetUsage+"; may be repeated")
	f.StringVar(&root, "root", "", rootUsage)
	f.StringSliceVar(&models, "model", nil, "baseline, or all; may be repeated")
	f.IntVar(&horizon, "horizon", 1, "forecast one value, `N` steps after the last known load")
	f.IntVar(&h, "h", 0, "forecast all of the next `N` steps")
	f.StringVar(&part, "part", "test", "split to score: train, validation, test or all")
	f.StringVar(&reference, "reference", string(forecast.Auto), "forecast to which the relative MAE refers: auto, last-value or last-week")
	f.StringVar(&out, "out", "", "write every forecast to this .csv or .parquet file")
	f.IntVar(&workers, "workers", runtime.NumCPU(), "number of clients to process in parallel")
	f.BoolVar(&byClients, "clients", false, "print one row per client")
	f.BoolVar(&asJSON, "json", false, "print JSON: one object, or a list for several datasets or models")
	f.BoolVar(&markdown, "markdown", false, "print Markdown tables")
	return cmd
}

// backtestResult contains the scores of one model on one dataset.
type backtestResult struct {
	Model     string `json:"model"`
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	Part      string `json:"part"`
	Horizon   int    `json:"horizon"`
	H         int    `json:"h,omitempty"`
	// Reference is the forecast to which the relative MAE refers.
	Reference forecast.Reference `json:"reference"`
	Fleet     metric.Fleet       `json:"fleet"`
	Clients   []backtestClient   `json:"clients"`
}

type backtestClient struct {
	ID      string       `json:"id"`
	Scores  metric.Point `json:"scores"`
	Skipped int          `json:"skipped"`
	// Steps contains the scores for each step ahead, if the model forecasts several.
	Steps []metric.Point `json:"steps,omitempty"`
}

func runBacktest(cmd *cobra.Command, b forecast.Backtest, model, out string) (r backtestResult, err error) {
	var each func(forecast.Forecast) error
	if out != "" {
		file, err := run.CreateForecasts(out, model)
		if err != nil {
			return r, err
		}
		defer func() {
			if cerr := file.Close(); err == nil {
				err = cerr
			}
		}()
		each = func(f forecast.Forecast) error {
			return file.Write(run.Forecast{Client: f.Client, Cutoff: f.Cutoff, Time: f.Time, Actual: f.Actual, Forecast: f.Forecast})
		}
	}
	scores, err := b.Run(cmd.Context(), model, each)
	if err != nil {
		return r, err
	}
	r = backtestResult{
		Model: model, Dataset: b.Dataset.Name, Generated: b.Dataset.Generated,
		Reference: b.Reference.For(series.Layout{Horizon: b.Horizon, Targets: b.Targets}),
	}
	var fleet []metric.Scores
	for _, s := range scores {
		c := backtestClient{ID: s.ID, Scores: s.Overall, Skipped: s.Skipped}
		if b.Targets > 1 {
			c.Steps = s.Steps
		}
		r.Clients = append(r.Clients, c)
		fleet = append(fleet, s.Overall.Scores())
	}
	r.Fleet = metric.NewFleet(fleet)
	return r, nil
}

func printBacktest(w io.Writer, results []backtestResult, byClients bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	dataset := ""
	for _, r := range results {
		if r.Dataset != dataset {
			if dataset != "" {
				fmt.Fprintln(t)
			}
			dataset = r.Dataset
			fmt.Fprintf(t, "%s\n", r.title())
			fmt.Fprintln(t, "MODEL\tMAE kW\tRMSE kW\tNMAE\tREL. MAE\tMEDIAN\tP05\tP95\tBELOW 1\t")
		}
		mae, rmse, nmae, relative := r.Fleet["mae"], r.Fleet["rmse"], r.Fleet["nmae"], r.Fleet["relative_mae"]
		fmt.Fprintf(t, "%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.0f %%\t\n", r.Model,
			mae.Mean, rmse.Mean, nmae.Mean, relative.Mean, relative.Median, relative.P05, relative.P95, 100*r.belowOne())
		if !byClients {
			continue
		}
		for _, c := range r.Clients {
			fmt.Fprintf(t, "%s\t%.3f\t%.3f\t%.3f\t%.3f\t\t\t\t\t\n", c.ID, c.Scores.MAE(), c.Scores.RMSE(), c.Scores.NMAE(), c.Scores.RelativeMAE())
		}
	}
	return t.Flush()
}

func printBacktestMarkdown(w io.Writer, results []backtestResult) error {
	dataset := ""
	for _, r := range results {
		if r.Dataset != dataset {
			dataset = r.Dataset
			fmt.Fprintf(w, "\n%s\n\n", r.title())
			fmt.Fprintln(w, "| model | MAE kW | RMSE kW | NMAE | relative MAE mean | median | 5 % | 95 % | below 1 |")
			fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
		}
		relative := r.Fleet["relative_mae"]
		if _, err := fmt.Fprintf(w, "| %s | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.0f %% |\n", r.Model,
			r.Fleet["mae"].Mean, r.Fleet["rmse"].Mean, r.Fleet["nmae"].Mean, relative.Mean, relative.Median, relative.P05, relative.P95, 100*r.belowOne()); err != nil {
			return err
		}
	}
	return nil
}

// title returns the heading of a dataset's rows.
func (r backtestResult) title() string {
	s := fmt.Sprintf("%s: %s, %s split, ", r.Dataset, count(len(r.Clients), "client"), r.Part)
	if r.H > 0 {
		s += fmt.Sprintf("all of the next %s", count(r.H, "step"))
	} else {
		s += fmt.Sprintf("%s ahead", count(r.Horizon, "step"))
	}
	return s + fmt.Sprintf(", errors relative to %s", r.Reference) + generatedMark(r.Generated)
}

// belowOne returns the share of clients for which the model is better than the reference.
func (r backtestResult) belowOne() float64 {
	if b := r.Fleet["relative_mae"].BelowOne; b != nil {
		return float64(*b)
	}
	return 0
}
