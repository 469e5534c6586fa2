// Package backtest scores baselines on datasets and prints tables of the scores.
package backtest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"loadstar/internal/textfmt"

	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// Result contains the scores of one model on one dataset.
type Result struct {
	Model     string `json:"model"`
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	Part      string `json:"part"`
	Horizon   int    `json:"horizon"`
	H         int    `json:"h,omitempty"`
	// Stride is the number of steps between scored origins.
	Stride int `json:"stride"`
	// Mark labels output that is based on synthetic data; it is empty for other data.
	Mark string `json:"-"`
	// Reference is the forecast to which the relative MAE refers.
	Reference forecast.Reference `json:"reference"`
	Fleet     metric.Fleet       `json:"fleet"`
	Clients   []Client           `json:"clients"`
}

// Client contains the scores of one client.
type Client struct {
	ID      string       `json:"id"`
	Scores  metric.Point `json:"scores"`
	Skipped int          `json:"skipped"`
	// Steps contains the scores for each step ahead, if the model forecasts several.
	Steps []metric.Point `json:"steps,omitempty"`
}

// Run backtests a baseline. Unless out is empty, it writes every forecast to that file, in the
// format given by the file name's extension.
func Run(ctx context.Context, b forecast.Backtest, model, out string) (r Result, err error) {
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
	scores, err := b.Run(ctx, model, each)
	if err != nil {
		return r, err
	}
	r = Result{
		Model: model, Dataset: b.Dataset.Name, Generated: b.Dataset.Generated, Stride: max(b.Stride, 1),
		Reference: b.Reference.For(series.Layout{Horizon: b.Horizon, Targets: b.Targets}),
	}
	var fleet []metric.Scores
	for _, s := range scores {
		c := Client{ID: s.ID, Scores: s.Overall, Skipped: s.Skipped}
		if b.Targets > 1 {
			c.Steps = s.Steps
		}
		r.Clients = append(r.Clients, c)
		fleet = append(fleet, s.Overall.Scores())
	}
	r.Fleet = metric.NewFleet(fleet)
	return r, nil
}

// Print prints a table for each dataset. If byClients is true, the table has a row for each
// client.
func Print(w io.Writer, results []Result, byClients bool) error {
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
		if r.Fleet["mae"].Count == 0 {
			fmt.Fprintf(t, "%s\t-\t-\t-\t-\t-\t-\t-\t-\t too few readings\n", r.Model)
			continue
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

// PrintMarkdown prints a Markdown table for each dataset, with the strongest model first.
func PrintMarkdown(w io.Writer, results []Result) error {
	results = slices.Clone(results)
	var order []string // names of the datasets
	for _, r := range results {
		order = append(order, r.Dataset)
	}
	slices.SortStableFunc(results, func(a, b Result) int {
		return cmp.Or(
			cmp.Compare(slices.Index(order, a.Dataset), slices.Index(order, b.Dataset)),
			cmp.Compare(a.Fleet["relative_mae"].Median, b.Fleet["relative_mae"].Median),
		)
	})
	dataset := ""
	for _, r := range results {
		if r.Dataset != dataset {
			dataset = r.Dataset
			fmt.Fprintf(w, "\n%s\n\n", r.title())
			fmt.Fprintln(w, "| model | MAE kW | RMSE kW | NMAE | relative MAE mean | median | 5 % | 95 % | below 1 |")
			fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
		}
		if r.Fleet["mae"].Count == 0 {
			fmt.Fprintf(w, "| %s | too few readings | | | | | | | |\n", r.Model)
			continue
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
func (r Result) title() string {
	s := fmt.Sprintf("%s: %s, %s split, ", r.Dataset, textfmt.Count(len(r.Clients), "client"), r.Part)
	if r.H > 0 {
		s += fmt.Sprintf("all of the next %s", textfmt.Count(r.H, "step"))
	} else {
		s += fmt.Sprintf("%s ahead", textfmt.Count(r.Horizon, "step"))
	}
	if r.Stride > 1 {
		s += fmt.Sprintf(", an origin every %d steps", r.Stride)
	}
	return s + fmt.Sprintf(", errors relative to %s", r.Reference) + r.Mark
}

// belowOne returns the share of clients for which the model is better than the reference.
func (r Result) belowOne() float64 {
	if b := r.Fleet["relative_mae"].BelowOne; b != nil {
		return float64(*b)
	}
	return 0
}
