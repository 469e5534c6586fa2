package main

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/internal/bench"
	"loadstar/internal/bench/simulate"
)

func newBenchSimulate() *cobra.Command {
	var (
		asJSON        bool
		runs, workers int
		seconds       float64
	)
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Measure the simulator beside the bare training engine on the same cores",
		Long: `Measure the simulator beside the bare training engine on the same cores, in turn: the
bose2023 model with a personal head, four local steps of Adam at batch 64 for each
client, with everything that a run does besides: cohorts, examples, personal layers
kept, exact sums, evaluations, tables, checkpoints.

Fleets are 42 clients, all in every round; and 1,000 and 10,000 with cohorts of 100,
each a year of hourly random numbers. The engine is what bench engine measures, on as
many threads as the simulator has workers; it runs between the simulator's rounds, so
that both see the same machine. Steps are per second of the wall clock, without the
other's turns; figures are medians over runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(runs, seconds)
			if err == nil && workers < 1 {
				err = fmt.Errorf("--workers is at least 1")
			}
			if err != nil {
				return usageError{err, "bench simulate "}
			}
			collectOften()
			bar := stages{to: cmd.ErrOrStderr()}
			defer bar.stop()
			b, err := simulate.Run(cmd.Context(), simulate.Config{Fleets: simulate.Usual(), Runs: runs, Workers: workers, Length: d}, bar.set)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			return printSimulateBench(cmd.OutOrStdout(), b)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&runs, "runs", 3, "how many times to measure everything")
	cmd.Flags().IntVar(&workers, "workers", runtime.NumCPU(), "clients to train at a time, and threads of the engine")
	cmd.Flags().Float64Var(&seconds, "seconds", 20, "seconds of each measurement")
	return cmd
}

func printSimulateBench(w io.Writer, b *simulate.Result) error {
	fmt.Fprintf(w, "%s with a personal head, batch %d, %s, %s\n\n", bench.Model, bench.Batch, b.Kernel, count(b.Workers, "worker"))
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
	_, err := fmt.Fprintf(w, "\nA round with 10,000 clients takes %.3f times one with 1,000. At most %d MB.\n", b.IdleCost, b.RSS>>20)
	return err
}
