package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/run"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
)

func newSimulate() *cobra.Command {
	var (
		data, root, out string
		rounds          int
		c               sim.Config
		memoryMB        int64
		asJSON, quiet   bool
	)
	cmd := &cobra.Command{
		Use:   "simulate PLAN",
		Short: "Train a plan's fleet in this process",
		Long: `Train a plan's fleet in this process: the round logic, aggregation and local training
of a real fleet, on a virtual clock.

The run's folder holds the effective plan, a table of the rounds, of the evaluations
on the way and of the clients in the end (CSV and Parquet), the shared and personal
weights (.safetensors), events as JSON lines, and a summary. The same plan, data and
kernel set give the same bytes, with any number of workers.

A run that was stopped, by Ctrl-C or by anything else, goes on with --resume, and
ends with what it would have ended with anyway.`,
		Example: "  loadstar simulate plans/plfl-head.yaml\n" +
			"  loadstar simulate plans/fedadam.yaml --data datasets/resstock-ca-core42.yaml --rounds 200 --json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			usage := func(format string, a ...any) error { return usageError{fmt.Errorf(format, a...), "simulate "} }
			if c.Workers < 1 || memoryMB < 0 || c.Save < 0 || rounds < 0 {
				return usage("--workers is at least 1, and --rounds, --memory and --save are not below 0")
			}
			plan, err := readPlan(args[0], data, rounds)
			if err != nil {
				return err
			}
			if plan.Data == "" {
				return usage("which dataset? the plan names none: give --data")
			}
			d, closer, err := openDataset(plan.Data, root)
			if err != nil {
				return err
			}
			defer closer.Close()
			if c.Kernel, err = kernel.Default(); err != nil {
				return err
			}
			if out == "" {
				out = filepath.Join("runs", plan.Name)
			}
			c.Plan, c.Dataset, c.Dir, c.Memory = plan, d, out, memoryMB<<20
			if !quiet {
				bar := newProgress(cmd.ErrOrStderr(), plan.Rounds)
				defer bar.stop()
				c.Progress = func(p sim.Progress) {
					note := fmt.Sprintf(", loss %.4g", p.Loss)
					if !math.IsNaN(p.MASE) {
						note += fmt.Sprintf(", MASE %.3f", p.MASE)
					}
					bar.set(p.Round, note)
				}
			}
			collectOften()
			s, err := sim.Run(cmd.Context(), c)
			if errors.Is(err, run.ErrExists) {
				return fmt.Errorf("%w: resume it with --resume, or choose another folder with --out", err)
			} else if err != nil {
				return err
			}
			if asJSON {
				s.Fleet = nil // it is in summary.json
				return printLine(cmd.OutOrStdout(), s)
			}
			return printSummary(cmd.OutOrStdout(), s, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", "dataset instead of the plan's: a description, a folder with one, or a prepared file")
	f.StringVar(&root, "root", "", rootUsage)
	f.IntVar(&rounds, "rounds", 0, "rounds instead of the plan's")
	f.StringVar(&out, "out", "", "the run's folder (default runs/NAME, by the plan's name)")
	f.BoolVar(&c.Resume, "resume", false, "go on with the run in that folder")
	f.IntVar(&c.Workers, "workers", runtime.NumCPU(), "clients to train at a time")
	f.Int64Var(&memoryMB, "memory", 512, "megabytes for what idle clients keep; the rest is on disk")
	f.DurationVar(&c.Save, "save", 30*time.Second, "time between checkpoints; 0s saves after every round")
	f.BoolVar(&asJSON, "json", false, "end with the summary as one line of JSON")
	f.BoolVar(&quiet, "quiet", false, "no progress bar")
	return cmd
}

// collectOften bounds memory: training allocates next to nothing, so that the garbage
// collector costs nothing, but it would let the heap grow to twice what is in use.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
}

// readPlan reads a plan, with what the command line says instead.
func readPlan(path, data string, rounds int) (*fed.Plan, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := recipe.Read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if data != "" {
		p.Data = data
	}
	if rounds > 0 {
		p.Rounds = rounds
	}
	return p, nil
}

func printSummary(w io.Writer, s *run.Summary, dir string) error {
	fmt.Fprintf(w, "%s: %s on %s, %s, %s, %s%s\n", s.Plan, s.Algorithm, s.Dataset,
		count(s.Clients, "client"), count(s.Rounds, "round"), count(int(s.Steps), "gradient step"), generatedMark(s.Generated))
	fmt.Fprintf(w, "test part: MASE mean %.3f, median %.3f, below 1 for %.0f %% of clients; MAE %.3f kW\n",
		s.MASE.Mean, s.MASE.Median, 100*s.MASE.BelowOne, s.MAE)
	fmt.Fprintf(w, "%.0f steps/s on %s, %.0f %% of the time in the engine; %d MB; prepared in %.1f s, trained in %.1f s, scored in %.1f s\n",
		s.StepsPerS, count(s.Workers, "worker"), 100*s.EngineShare, s.RSS>>20, s.Seconds.Prepare, s.Seconds.Train, s.Seconds.Score)
	if n := len(s.LeftOut); n > 0 {
		fmt.Fprintf(w, "left out for want of a complete training example: %s, such as %s\n", count(n, "meter"), s.LeftOut[0])
	}
	_, err := fmt.Fprintf(w, "weights %s\nin %s\n", s.Weights, dir)
	return err
}
