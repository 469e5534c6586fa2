package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"loadstar/internal/bench"
	"loadstar/internal/bench/engine"
	"loadstar/series"
)

func newBenchWindows() *cobra.Command {
	var (
		asJSON     bool
		runs       int
		seconds    float64
		data, root string
	)
	cmd := &cobra.Command{
		Use:   "windows",
		Short: "Measure what gathering a batch costs beside training on it",
		Long: `Measure, on one core and in turn, gathering a batch of 64 windows of 12 steps by 8
inputs at random times out of random meters, and a training step of the bose2023 model
on such a batch. Also what finding a meter's examples costs, which is done once per
meter. Medians, in microseconds of CPU time.

The meters are those of --data, which must have weather and floor, wall and window
areas, or else 1,000 hourly years of random numbers.`,
		Example: "  loadstar bench windows\n  loadstar bench windows --data fleet.prepared",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(runs, seconds)
			if err != nil {
				return usageError{err, "bench windows "}
			}
			var fleet *series.Dataset
			if data == "" {
				fleet, err = bench.RandomFleet(1000)
			} else {
				var closer io.Closer
				if fleet, closer, err = openDataset(data, root); err == nil {
					defer closer.Close()
				}
			}
			if err != nil {
				return err
			}
			b, err := engine.RunWindows(fleet, runs, d)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: gather %.1f us, step %.0f us (%s): %.1f %% of a step; finding a meter's examples %.0f us\n",
				count(b.Meters, "meter"), b.GatherMicros, b.StepMicros, b.Kernel, 100*b.Share, b.FindMicros)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&data, "data", "", "dataset to gather from")
	cmd.Flags().StringVar(&root, "root", "", rootUsage)
	cmd.Flags().IntVar(&runs, "runs", 7, "how many times to measure everything")
	cmd.Flags().Float64Var(&seconds, "seconds", 0.2, "CPU seconds of each measurement")
	return cmd
}
