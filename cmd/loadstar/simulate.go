package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/agent/state"
	"loadstar/cmd/loadstar/cli"
	"loadstar/fed"
	"loadstar/lab/backtest"
	"loadstar/lab/report"
	"loadstar/lab/run"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// simulateOptions are the flags of the command.
type simulateOptions struct {
	data, root, out string
	serverData      string
	replay          sim.Replay
	secretFile      string
	rounds          int
	c               sim.Config
	memoryMB        int64
	asJSON, quiet   bool
	baselines       []string
}

func newSimulate() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate PLAN",
		Short: "Simulate a fleet: train a plan in one process",
		Long: `Simulate a fleet: train a plan in one process, with the round logic, aggregation
and local training of a real fleet, on a virtual clock.

The run's folder contains the effective plan, tables of rounds, evaluations and
clients (CSV and Parquet), shared and personal weights (.safetensors), events as
JSON lines, and a summary. The same plan, data and kernel set give the same
bytes, with any number of workers.

At the end, the command backtests last week's profile, the rolling median and
ridge-rich on the same task and prints them with the run. --baseline none and
--json omit them.

If a run is interrupted, by Ctrl-C or a crash, --resume continues it from the
last checkpoint. The results are the same as without the interruption.`,
		Example: "  loadstar simulate plans/hour-ahead.yaml --data datasets/sample\n" +
			"  loadstar simulate plans/fedadam.yaml --rounds 200 \\\n      --data datasets/resstock-ca-core42.yaml --json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *simulateOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.data, "data", "", cli.DatasetUsage)
	f.StringVar(&o.replay.Run, "run", "", "repeat the `run` of a fleet whose agents all have the secret of --secret-file, for tests of the fleet")
	f.StringVar(&o.secretFile, "secret-file", "", "`file` with the agents' secret, copied from an agent's folder")
	f.BoolVar(&o.replay.Blocks, "whole-blocks", false, "with --run: assume that the agents' policy sets whole_blocks (the default)")
	f.StringVar(&o.serverData, "server-data", "", "the server's own `dataset`, as in a fleet; without it, the plan's share of the clients belongs to the server (server.clients)")
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.IntVar(&o.rounds, "rounds", 0, "number of rounds (default the plan's)")
	f.StringVar(&o.out, "out", "", "folder for the run (default runs/NAME, with the plan's name)")
	f.BoolVar(&o.c.Resume, "resume", false, "continue the interrupted run in the --out folder")
	f.IntVar(&o.c.Workers, "workers", runtime.NumCPU(), "number of clients to train in parallel")
	f.Int64Var(&o.memoryMB, "memory", 512, "memory for the state of idle clients, in megabytes; the rest of the state is on disk")
	f.DurationVar(&o.c.Save, "save", 30*time.Second, "time between checkpoints; 0s saves after every round")
	f.BoolVar(&o.asJSON, "json", false, "print the summary as one line of JSON")
	f.BoolVar(&o.quiet, "quiet", false, "show no progress bar")
	f.StringSliceVar(&o.baselines, "baseline", backtest.Default, baselineUsage)
}

// run simulates a fleet.
func (o *simulateOptions) run(cmd *cobra.Command, args []string) error {
	if err := o.check(); err != nil {
		return err
	}
	plan, err := cli.ReadPlan(args[0], o.rounds)
	if err != nil {
		return err
	}
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), o.data, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	if o.serverData != "" {
		own, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), o.serverData, o.root)
		if err != nil {
			return fmt.Errorf("--server-data: %w", err)
		}
		defer closer.Close()
		o.c.ServerData = own
	}
	if plan, err = cli.ResolvePlan(cmd.ErrOrStderr(), plan, d.Interval); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if o.c.Kernel, err = kernel.Default(); err != nil {
		return err
	}
	o.out = cmp.Or(o.out, filepath.Join("runs", plan.Name))
	o.c.Plan, o.c.Dataset, o.c.DataPath, o.c.Dir, o.c.Memory = plan, d, o.data, o.out, o.memoryMB<<20
	o.c.Note = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
	if !o.quiet {
		bar := &cli.Stages{To: cmd.ErrOrStderr()}
		defer bar.Stop()
		o.c.Progress = showProgress(bar)
	}
	cli.CollectOften()
	s, err := sim.Run(cmd.Context(), o.c)
	if errors.Is(err, run.ErrExists) {
		return fmt.Errorf("%w; resume it with --resume, or choose another folder with --out", err)
	} else if err != nil {
		return err
	}
	return o.print(cmd, s)
}

// check checks the flags and, if a run is to be repeated, reads its secret.
func (o *simulateOptions) check() (err error) {
	if o.c.Workers < 1 || o.memoryMB < 0 || o.c.Save < 0 || o.rounds < 0 {
		return cli.Usagef("--workers must be at least 1, and --rounds, --memory and --save at least 0")
	}
	if o.data == "" {
		return cli.NoData()
	}
	if err := checkBaselines(o.baselines); err != nil {
		return err
	}
	if (o.replay.Run == "") != (o.secretFile == "") {
		return cli.Usagef("use --run and --secret-file together")
	}
	if o.replay.Run == "" {
		return nil
	}
	if o.replay.Secret, err = state.ReadSecret(o.secretFile); err != nil {
		return fmt.Errorf("--secret-file: %w", err)
	}
	o.c.Replay = &o.replay
	return nil
}

// showProgress returns a function that shows the progress of a simulation.
func showProgress(bar *cli.Stages) func(sim.Progress) {
	return func(p sim.Progress) {
		if p.Unasked > 0 {
			bar.Set(p.Fitted, p.Unasked, ", fitting personal layers")
			return
		}
		note := fmt.Sprintf(", loss %.4g", p.Loss)
		if !math.IsNaN(p.RelativeMAE) {
			note += fmt.Sprintf(", relative MAE %.3f", p.RelativeMAE)
		}
		bar.Set(p.Round, p.Rounds, note)
	}
}

// print prints the results next to the baselines.
func (o *simulateOptions) print(cmd *cobra.Command, s *run.Summary) error {
	w, d, plan := cmd.OutOrStdout(), o.c.Dataset, o.c.Plan
	if o.asJSON {
		s.Fleet = nil // summary.json contains it
		if err := cli.PrintLine(w, s); err != nil {
			return err
		}
		return scored(s, d, plan, o.out)
	}
	if err := s.Print(w, o.out); err != nil {
		return err
	}
	if err := scored(s, d, plan, o.out); err != nil {
		return err
	}
	if !slices.Equal(o.baselines, []string{"none"}) {
		if _, err := backtest.Beside(cmd.Context(), d, plan, o.out, o.baselines, o.c.Workers); err != nil {
			return fmt.Errorf("the run is complete, but not its baselines: %w", err)
		}
		if err := printClosing(w, o.out); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, reportHint(o.out))
	return err
}

// scored returns an error if no client of a run could be scored, because scripts would take
// exit code 0 to mean that there are results.
func scored(s *run.Summary, d *series.Dataset, p *fed.Plan, dir string) error {
	if !math.IsNaN(float64(s.MAE)) {
		return nil
	}
	longest := 0
	for i := range d.Len() {
		longest = max(longest, len(d.Meter(i).Load))
	}
	return fmt.Errorf("the run is complete, but no client could be scored: no series has a complete forecast of %d steps and the readings before it in its test split, the last %.3g %%; "+
		"the longest series of %s has %d readings: use more readings, enlarge the test split with model.split in the plan, or look for gaps with loadstar data check; the weights are in %s",
		p.Model.Targets.Steps(), 100*(1-p.Model.Split.Train-p.Model.Split.Validation), d.Name, longest, dir)
}

// printClosing prints a table of a run and its baselines, and a sentence that compares them.
func printClosing(w io.Writer, dir string) error {
	sentence, rows, err := report.Closing(dir)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%s\n%s\n", sentence, report.ErrorNote)
	return err
}
