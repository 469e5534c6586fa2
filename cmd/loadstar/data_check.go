package main

import (
	"fmt"
	"io"
	"strings"

	"loadstar/internal/textfmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/explain"
	"loadstar/series"
	"loadstar/series/quality"
)

// jsonCells is the number of equal periods for which the JSON output contains the share of
// missing readings.
const jsonCells = 72

// checkOptions are the flags of the command.
type checkOptions struct {
	root, meter string
	planFile    string
	asJSON, all bool
	plan        quality.Plan
}

func newDataCheck() *cobra.Command {
	var o checkOptions
	var codes strings.Builder
	for _, c := range quality.Codes() {
		fmt.Fprintf(&codes, "  %-13s  %s\n", c.Code, c.Meaning)
	}
	cmd := &cobra.Command{
		Use:   "check DATASET",
		Short: "Check load data for quality problems",
		Long: `Check load data for quality problems: gaps, faulty rows, zeros that stand for
gaps, stuck and filled-in values, spikes, changes of level or unit, clocks that
are an hour off, and too little data for training. The command prints a summary
of the fleet, the meters with findings (worst first), and a chart of the gaps.

DATASET is a dataset.yaml, a folder with one, or a prepared file.

Each finding has a severity: problem (do not train on the unchanged meter),
warning (check the meter first) or info (worth knowing). It also has one of
these codes:

` + codes.String() + `
With --json the command prints one object:
  dataset, generated, interval_seconds, clock, plan
  losses   with --plan: training examples and forecasts (one every 6 hours) that
           there would be without gaps, and how many of them are lost
  fleet    totals of the numbers listed under meters, and
           problems, warnings  number of meters whose worst finding is a problem
                               or a warning
           codes               per code: problems, warnings, infos (meters), and
                               an example: meter, message, advice
           findings            findings about the fleet as a whole
           weather             per column: name, steps, missing
  meters   per meter: meter, from, to, steps, present, coverage,
           gaps, flat          count, steps, longest (steps), longest_at
           rows                faults in the file: rows, duplicates, conflicts,
                               out_of_order, off_grid, nonexistent
           negatives, zeros, repeat_share,
           level               mean, p05, median, p99, max in kW
           windows             training windows with this lookback and horizon
           windows_lost        training windows lost to missing readings
           findings            code, severity, count, steps, message, advice,
                               where (time, steps, size)
           missing             share of missing steps in 72 cells of the fleet's
                               time span, -1 before the first and after the last
                               reading

The exit code is 0 if no finding is worse than a warning, 3 if a meter has a
problem, and 1 or 2 as described in loadstar help exit-codes.`,
		Example: "  loadstar data check datasets/sample\n" +
			"  loadstar data check mydata --meter b103\n" +
			"  loadstar data check mydata --lookback 168 --horizon 24 --json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *checkOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringVar(&o.meter, "meter", "", "check only this meter, and print all details")
	f.BoolVar(&o.all, "all", false, "print all meters, not only the worst")
	f.StringVar(&o.planFile, "plan", "", "print how many examples and forecasts of the plan in `FILE` are lost to missing readings")
	f.IntVar(&o.plan.Lookback, "lookback", 12, "past steps in a window")
	f.IntVar(&o.plan.Horizon, "horizon", 1, "steps from the last input to the forecast")
	f.IntVar(&o.plan.MinDays, "min-days", 28, "minimum number of training windows per meter, in days")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
}

// run checks a dataset.
func (o *checkOptions) run(cmd *cobra.Command, args []string) error {
	if o.plan.Lookback < 1 || o.plan.Horizon < 1 || o.plan.MinDays < 0 {
		return cli.Usagef("--lookback and --horizon must be at least 1, and --min-days at least 0")
	}
	d, closer, err := cli.OpenDataset(args[0], o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	only := -1
	if o.meter != "" {
		if only, err = cli.FindMeter(d, o.meter); err != nil {
			return err
		}
	}
	o.plan.Cells = jsonCells
	if !o.asJSON {
		o.plan.Cells = quality.Cells(d)
	}
	c, err := quality.NewChecker(d, o.plan)
	if err != nil {
		return err
	}
	r := checkResult{
		Dataset: d.Name, Generated: d.Generated, Interval: d.Interval.Seconds(), Clock: d.Clock.String(),
		Plan: checkPlan{o.plan.Lookback, o.plan.Horizon, o.plan.MinDays}, Meters: []quality.MeterReport{},
	}
	bar := cli.NewProgress(cmd.ErrOrStderr(), d.Len())
	defer bar.Stop()
	for i := range d.Len() {
		if only >= 0 && i != only {
			continue
		}
		r.Meters = append(r.Meters, c.Meter(i))
		bar.Set(i+1, "")
	}
	r.Fleet = c.Fleet()
	page := quality.Report{Plan: o.plan, Fleet: r.Fleet, Meters: r.Meters, Mark: textfmt.Synthetic(d.Generated)}
	if o.planFile != "" {
		p, err := cli.ReadPlan(o.planFile, 0)
		if err != nil {
			return err
		}
		losses, err := explain.Gaps(p, d)
		if err != nil {
			return err
		}
		r.Losses, page.Losses = &losses, o.planFile+": "+losses.String()
	}
	return o.print(cmd.OutOrStdout(), d, r, page)
}

// print prints the findings, and returns the error for the exit code.
func (o *checkOptions) print(w io.Writer, d *series.Dataset, r checkResult, page quality.Report) (err error) {
	switch {
	case o.asJSON:
		err = cli.PrintJSON(w, r)
	case o.meter != "":
		err = quality.PrintMeter(w, d, page)
	default:
		err = quality.PrintFleet(w, d, page, o.all)
	}
	if err == nil && r.Fleet.Worst() == quality.Problem {
		err = cli.Problems(fmt.Errorf("%s: %s with problems", d.Name, cli.Count(r.Fleet.Problems, "meter")))
	}
	return err
}

// checkResult is the content of the output with --json.
type checkResult struct {
	Dataset   string                `json:"dataset"`
	Generated bool                  `json:"generated"`
	Interval  float64               `json:"interval_seconds"`
	Clock     string                `json:"clock"`
	Plan      checkPlan             `json:"plan"`
	Losses    *explain.Losses       `json:"losses,omitempty"` // losses of the plan in --plan
	Fleet     quality.FleetReport   `json:"fleet"`
	Meters    []quality.MeterReport `json:"meters"`
}

type checkPlan struct {
	Lookback int `json:"lookback"`
	Horizon  int `json:"horizon"`
	MinDays  int `json:"min_days"`
}
