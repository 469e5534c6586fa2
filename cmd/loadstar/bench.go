package main

import "github.com/spf13/cobra"

func newBench() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure this machine"}
	cmd.AddCommand(newBenchEngine(), newBenchWindows(), newBenchSimulate(), newBenchFleet(), newBenchFleetEngine(), newBenchSoak())
	return cmd
}
