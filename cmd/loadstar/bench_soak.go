package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"loadstar/internal/bench/fleet"
)

func newBenchSoak() *cobra.Command {
	var c fleet.SoakConfig
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Load the server for long, and see that it does not grow",
		Long: `Load the server for long with the fleet of bench fleet, round after round, and look at its
memory, open files and goroutines every few seconds. The first tenth, up to five minutes,
is for warming up. It fails if the memory of the last quarter is more than 5 % and 16 MB
above that of the second, if files or goroutines have become more, or if a result is
rejected, lost or counted twice. In less than ten minutes caches are still filling, so
25 % and 32 MB are allowed: that finds what leaks with every result, and nothing finer.`,
		Example: "  loadstar bench soak --for 1h",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := stages{to: cmd.ErrOrStderr()}
			defer bar.stop()
			s, err := fleet.Soak(cmd.Context(), c, bar.set)
			if err != nil {
				return fleetUsage(err, "bench soak ")
			}
			how := "flat"
			if s.Grown != nil {
				how = "grows"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "soak %v, %s, %s, RSS %d -> %d MB, %s\n", s.Length,
				count(int(s.Rounds), "round"), count(int(s.Updates), "update"), s.EarlyRSS>>20, s.LateRSS>>20, how)
			return s.Grown
		},
	}
	addBackends(cmd.Flags(), &c.Backends)
	cmd.Flags().IntVar(&c.Agents, "agents", 1000, "how many agents, with one client each")
	cmd.Flags().DurationVar(&c.Length, "for", time.Hour, "how long")
	cmd.Flags().StringVar(&c.Size, "size", "24k", "size of the shared part: 24k or 170k")
	cmd.Flags().Float64Var(&c.Rate, "rate", 500, "check-ins a second that the fleet is paced to")
	return cmd
}
