package main

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/rig/bench"
	"loadstar/rig/bench/simulate"
)

func newSimulate() *cobra.Command {
	var (
		asJSON        bool
		model         string
		runs, workers int
		seconds       float64
	)
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Benchmark the simulator against the training engine",
		Long: `Benchmark the simulator against the bare training engine on the same cores. Each
client trains the bose2023 model with a personal head for four Adam steps at
batch size 64, or the model dense with a personal correction for eight steps.
The simulator does everything that a run needs: cohorts, examples, personal
layers, exact sums, evaluations, tables and checkpoints.

There are three fleets, each with a year of hourly random numbers per client: 42
clients that all train in every round, and 1,000 and 10,000 clients with cohorts
of 100. The engine runs the training steps of bench engine, with one thread per
worker of the simulator. It runs between the simulator's rounds, so that both
run under the same conditions. Rates are steps per second of wall-clock time.
The simulator's rate does not include the time of the engine, and vice versa.
Figures are medians over runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(runs, seconds)
			if err == nil && workers < 1 {
				err = fmt.Errorf("--workers must be at least 1")
			}
			if err != nil {
				return cli.Usage(err)
			}
			cli.CollectOften()
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			defer bar.Stop()
			b, err := simulate.Run(cmd.Context(), simulate.Config{Model: model, Fleets: simulate.Usual(), Runs: runs, Workers: workers, Length: d}, bar.Set)
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), b)
			}
			return printSimulateBench(cmd.OutOrStdout(), model, b)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&model, "model", bench.Model, "bose2023 or dense")
	cmd.Flags().IntVar(&runs, "runs", 3, "number of repetitions")
	cmd.Flags().IntVar(&workers, "workers", runtime.NumCPU(), "number of clients to train in parallel, and of engine threads")
	cmd.Flags().Float64Var(&seconds, "seconds", 20, "seconds per measurement")
	return cmd
}

func printSimulateBench(w io.Writer, model string, b *simulate.Result) error {
	fmt.Fprintf(w, "%s with personal layers, batch size %d, %s, %s\n\n", model, bench.Batch, b.Kernel, cli.Count(b.Workers, "worker"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "CLIENTS\tCOHORT\tSTEPS/S\tENGINE/S\tSHARE\tROUND ms\t")
	for _, f := range b.Fleets {
		cohort := "all"
		if f.Cohort > 0 {
			cohort = fmt.Sprint(f.Cohort)
		}
		fmt.Fprintf(t, "%d\t%s\t%.0f\t%.0f\t%.1f %%\t%.1f\t\n", f.Clients, cohort, f.StepsPerS, f.EnginePerS, 100*f.Share, f.RoundMillis)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nA round with 10,000 clients takes %.3f times as long as one with 1,000. Peak memory: %d MB.\n", b.IdleCost, b.RSS>>20)
	return err
}
