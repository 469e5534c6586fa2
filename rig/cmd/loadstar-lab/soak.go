package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/rig/bench/fleet"
)

func newSoak() *cobra.Command {
	var c fleet.SoakConfig
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Soak-test the server: check for leaks under permanent load",
		Long: `Soak-test the server with the simulated agents of bench fleet. After a warm-up
of a tenth of the test (at most five minutes), the command samples the server's
memory, open files and goroutines every few seconds.

It fails if the memory in the last quarter exceeds that in the second quarter by
more than 5 % and also by more than 16 MB, if the number of open files or
goroutines grows, or if a result is rejected, lost or counted twice. In the
first ten minutes caches are still filling, so a test of less than ten minutes
allows 25 % and 32 MB. Such a short test finds only leaks that occur with every
result.`,
		Example: "  loadstar-lab bench soak --for 1h",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			defer bar.Stop()
			s, err := fleet.Soak(cmd.Context(), c, bar.Set)
			if err != nil {
				return fleetUsage(err)
			}
			how := "no growth"
			if s.Grown != nil {
				how = "growth"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "soak %v, %s, %s, RSS %d -> %d MB, %s\n", s.Length,
				cli.Count(int(s.Rounds), "round"), cli.Count(int(s.Updates), "update"), s.EarlyRSS>>20, s.LateRSS>>20, how)
			return s.Grown
		},
	}
	addBackends(cmd.Flags(), &c.Backends)
	cmd.Flags().IntVar(&c.Agents, "agents", 1000, "number of agents, with one client each")
	cmd.Flags().DurationVar(&c.Length, "for", time.Hour, "duration of the test")
	cmd.Flags().StringVar(&c.Size, "size", "24k", "size of the shared layers: 24k, 95k or 170k")
	cmd.Flags().Float64Var(&c.Rate, "rate", 500, "calls per second of the whole fleet")
	return cmd
}
