package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/rig/bench"
	"loadstar/rig/bench/engine"
	"loadstar/series"
)

func newWindows() *cobra.Command {
	var (
		asJSON     bool
		runs       int
		seconds    float64
		data, root string
	)
	cmd := &cobra.Command{
		Use:   "windows",
		Short: "Compare gathering a batch with training on it",
		Long: `Compare the time for gathering a batch with the time for training on it, on one
core and in alternation. A batch has 64 windows of 12 steps by 8 inputs, from
random meters at random times. The training step is that of the bose2023 model.
The benchmark also measures finding a meter's examples, which happens once per
meter. Figures are medians, in microseconds of CPU time.

The dataset (--data) must have weather and floor, wall and window areas. Without
--data the benchmark uses 1,000 meters with a year of hourly random numbers
each.`,
		Example: "  loadstar-lab bench windows\n  loadstar-lab bench windows --data fleet.prepared",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(runs, seconds)
			if err != nil {
				return cli.Usage(err)
			}
			var fleet *series.Dataset
			if data == "" {
				fleet, err = bench.RandomFleet(1000)
			} else {
				var closer io.Closer
				if fleet, closer, err = cli.OpenDataset(data, root); err == nil {
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
				return cli.PrintJSON(cmd.OutOrStdout(), b)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: gathering %.1f us, training step %.0f us (%s), ratio %.1f %%; finding a meter's examples %.0f us\n",
				cli.Count(b.Meters, "meter"), b.GatherMicros, b.StepMicros, b.Kernel, 100*b.Share, b.FindMicros)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&data, "data", "", "dataset to gather from")
	cmd.Flags().StringVar(&root, "root", "", cli.RootUsage)
	cmd.Flags().IntVar(&runs, "runs", 7, "number of repetitions")
	cmd.Flags().Float64Var(&seconds, "seconds", 0.2, "CPU seconds per measurement")
	return cmd
}
