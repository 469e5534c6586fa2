package main

import (
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

func newSimulate() *cobra.Command {
	var (
		data, root, out string
		serverData      string
		replay          sim.Replay
		secretFile      string
		rounds          int
		c               sim.Config
		memoryMB        int64
		asJSON, quiet   bool
		baselines       []string
	)
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
ridge-rich on the same task and prints them with the run; --baseline none
leaves them out, and so does --json.

If a run is interrupted, by Ctrl-C or a crash, --resume continues it from the
last checkpoint. The results are the same as without the interruption.`,
		Example: "  loadstar simulate plans/hour-ahead.yaml --data datasets/sample\n" +
			"  loadstar simulate plans/fedadam.yaml --rounds 200 \\\n      --data datasets/resstock-ca-core42.yaml --json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.Workers < 1 || memoryMB < 0 || c.Save < 0 || rounds < 0 {
				return cli.Usagef("--workers must be at least 1, and --rounds, --memory and --save at least 0")
			}
			if data == "" {
				return cli.NoData()
			}
			if err := checkBaselines(baselines); err != nil {
				return err
			}
			plan, err := cli.ReadPlan(args[0], rounds)
			if err != nil {
				return err
			}
			d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), data, root)
			if err != nil {
				return err
			}
			defer closer.Close()
			if serverData != "" {
				own, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), serverData, root)
				if err != nil {
					return fmt.Errorf("--server-data: %w", err)
				}
				defer closer.Close()
				c.ServerData = own
			}
			if plan, err = cli.ResolvePlan(cmd.ErrOrStderr(), plan, d.Interval); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if (replay.Run == "") != (secretFile == "") {
				return cli.Usagef("--run and --secret-file need each other")
			}
			if replay.Run != "" {
				if replay.Secret, err = state.ReadSecret(secretFile); err != nil {
					return fmt.Errorf("--secret-file: %w", err)
				}
				c.Replay = &replay
			}
			if c.Kernel, err = kernel.Default(); err != nil {
				return err
			}
			if out == "" {
				out = filepath.Join("runs", plan.Name)
			}
			c.Plan, c.Dataset, c.DataPath, c.Dir, c.Memory = plan, d, data, out, memoryMB<<20
			c.Note = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
			if !quiet {
				bar := &cli.Stages{To: cmd.ErrOrStderr()}
				defer bar.Stop()
				c.Progress = func(p sim.Progress) {
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
			cli.CollectOften()
			s, err := sim.Run(cmd.Context(), c)
			if errors.Is(err, run.ErrExists) {
				return fmt.Errorf("%w: resume it with --resume, or choose another folder with --out", err)
			} else if err != nil {
				return err
			}
			if asJSON {
				s.Fleet = nil // summary.json contains it
				if err := cli.PrintLine(cmd.OutOrStdout(), s); err != nil {
					return err
				}
				return scored(s, d, plan, out)
			}
			w := cmd.OutOrStdout()
			if err := s.Print(w, out); err != nil {
				return err
			}
			if err := scored(s, d, plan, out); err != nil {
				return err
			}
			if !slices.Equal(baselines, []string{"none"}) {
				if _, err := backtest.Beside(cmd.Context(), d, plan, out, baselines, c.Workers); err != nil {
					return fmt.Errorf("the run is complete, but not its baselines: %w", err)
				}
				if err := printClosing(w, out); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintln(w, reportHint(out))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", cli.DatasetUsage)
	f.StringVar(&replay.Run, "run", "", "repeat the `run` of a fleet whose agents all have the secret of --secret-file, for tests of the fleet")
	f.StringVar(&secretFile, "secret-file", "", "`file` with the agents' secret, from an agent's folder")
	f.BoolVar(&replay.Blocks, "whole-blocks", false, "with --run: assume that the agents' policy sets whole_blocks, which is the default")
	f.StringVar(&serverData, "server-data", "", "the server's own `dataset`, as in a fleet; without it, the plan's share of the clients is the server's (server.clients)")
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.IntVar(&rounds, "rounds", 0, "number of rounds (default the plan's)")
	f.StringVar(&out, "out", "", "folder for the run (default runs/NAME, with the plan's name)")
	f.BoolVar(&c.Resume, "resume", false, "continue the interrupted run in the --out folder")
	f.IntVar(&c.Workers, "workers", runtime.NumCPU(), "number of clients to train in parallel")
	f.Int64Var(&memoryMB, "memory", 512, "megabytes of memory for the state of idle clients; the rest is on disk")
	f.DurationVar(&c.Save, "save", 30*time.Second, "time between checkpoints; 0s saves after every round")
	f.BoolVar(&asJSON, "json", false, "print the summary as one line of JSON")
	f.BoolVar(&quiet, "quiet", false, "show no progress bar")
	f.StringSliceVar(&baselines, "baseline", backtest.Default, baselineUsage)
	return cmd
}

// scored returns an error if no client of a run could be scored, because scripts would take
// exit code 0 for a result.
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

// printClosing prints a run beside its baselines: a table, and one sentence.
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
