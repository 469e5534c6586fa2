package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/rig/bench/fleet"
)

func newPrivate() *cobra.Command {
	var (
		c      fleet.PrivateConfig
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "private",
		Short: "Measure the cost of private runs for agents, server and keeper",
		Long: `Measure the cost of private runs for agents, server and keeper, with the model
dense of the plan day-ahead. The server runs in its own process, with the
simulated agents of bench fleet. The rounds alternate between plain rounds,
private rounds without a check, and private rounds with 'check: norm'. Ratios
compare the server's CPU times per counted update within the same repetition
(--turns). Figures are medians over the repetitions, and do not include the CPU
time of PostgreSQL.

The command also measures the keeper without a network: the CPU time for
releasing the sums of rounds with the given numbers of members (--members). An
agent's time is the time for encoding and masking an update in this process.

The merge wait is the time from the close of a round to the opening of the next
round, minus the same time in a plain run. The command fails in the same cases
as bench fleet. With --json the last line is the result.`,
		Example: "  loadstar-lab bench private --json\n  loadstar-lab bench private --agents 100 --seconds 2 --turns 1 --members 100",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			defer bar.Stop()
			r, err := fleet.Private(cmd.Context(), c, bar.Set)
			if err != nil {
				return fleetUsage(err)
			}
			if asJSON {
				return cli.PrintLine(cmd.OutOrStdout(), r)
			}
			return printPrivate(cmd.OutOrStdout(), r)
		},
	}
	f := cmd.Flags()
	addBackends(f, &c.Backends)
	f.IntVar(&c.Agents, "agents", 1000, "number of agents, with one client each")
	f.IntVar(&c.Turns, "turns", 3, "number of repetitions")
	f.Float64Var(&c.Seconds, "seconds", 10, "minimum seconds per server measurement")
	f.Float64Var(&c.Rate, "rate", 2000, "calls per second of the whole fleet")
	f.IntSliceVar(&c.Members, "members", []int{1000, 10_000}, "numbers of results in the rounds that the keeper releases")
	f.BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}

func printPrivate(w io.Writer, r *fleet.PrivateResult) error {
	fmt.Fprintf(w, "%d agents, %d shared numbers\n\n", r.Agents, r.Shared)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "agent\t%.3f ms of CPU to mask an update\t\n", r.Agent)
	fmt.Fprintf(t, "server\t%.2f times the CPU of a plain update (%.2f ms), %.2f times with check norm\t\n", r.Ratio, r.Plain, r.CheckRatio)
	for i, n := range r.Members {
		fmt.Fprintf(t, "keeper\t%.3f s of CPU to release a round of %d\t\n", r.Keeper[i], n)
	}
	fmt.Fprintf(t, "push\t%.0f bytes; plan explain says %d\t\n", r.PushBytes, r.PlanBytes)
	fmt.Fprintf(t, "merge wait\t%.3f s, %.3f s with check norm\t\n", r.Wait, r.CheckWait)
	return t.Flush()
}
