package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/internal/bench/fleet"
)

func newBenchFleet() *cobra.Command {
	var (
		c      fleet.Config
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Measure the server under a fleet, beside the engines that it leans on",
		Long: `Measure the server under a fleet, beside the engines that it leans on: a server in a
process of its own, and agents in this one, each with a key, a certificate and a
connection that stays. They check in as the server paces them, fetch the weights of
every round, and push random numbers instead of training. Of ten of them seven (--cohort)
are wanted in a round, a tenth more are asked, and rounds follow each other.

The shared part of the model has 24 KB (bose2023, head personal) or 170 KB (all of it
shared). In turn with the server, the engines alone: results put on an embedded NATS
server's disk by 16 writers, and results added up and counted in the ledger by whole
batches. What the server counts a second, over the slower of the two, is its share of
what is possible on them. Figures are medians over turns, of ratios within each turn;
latencies are of all turns together. The generator runs on the same machine, and its
CPU time is told too.

It fails if a result is rejected, lost or counted twice.`,
		Example: "  loadstar bench fleet\n  loadstar bench fleet --agents 200 --seconds 2 --turns 1 --size 24k",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := stages{to: cmd.ErrOrStderr()}
			defer bar.stop()
			b, err := fleet.Run(cmd.Context(), c, bar.set)
			if err != nil {
				return fleetUsage(err, "bench fleet ")
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			return printFleetBench(cmd.OutOrStdout(), b)
		},
	}
	f := cmd.Flags()
	addBackends(f, &c.Backends)
	f.IntVar(&c.Agents, "agents", 10_000, "how many agents, with one client each")
	f.Float64Var(&c.Cohort, "cohort", 0.7, "share of them that a round wants")
	f.StringSliceVar(&c.Sizes, "size", []string{"24k", "170k"}, "sizes of the shared part")
	f.IntVar(&c.Turns, "turns", 3, "how many times to measure everything")
	f.Float64Var(&c.Seconds, "seconds", 10, "seconds of each of the server's turns; the engines' are at most 5")
	f.Float64Var(&c.Rate, "rate", 0, "check-ins a second that the fleet is paced to (default by the engines' speed)")
	f.IntVar(&c.Aggregators, "aggregators", 2, "how many of the server count side by side")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// newBenchFleetEngine runs the part of bench fleet that needs its own process.
func newBenchFleetEngine() *cobra.Command {
	var (
		b       fleet.Backends
		size    string
		clients int
		seconds float64
	)
	cmd := &cobra.Command{
		Use:    "fleet-engine",
		Short:  "Measure the engines under the server alone",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(1, seconds)
			if err != nil {
				return usageError{err, "bench fleet-engine "}
			}
			r, err := fleet.Engines(cmd.Context(), b, size, clients, d)
			if err != nil {
				return fleetUsage(err, "bench fleet-engine ")
			}
			return printLine(cmd.OutOrStdout(), r)
		},
	}
	addBackends(cmd.Flags(), &b)
	cmd.Flags().StringVar(&size, "size", "24k", "24k or 170k")
	cmd.Flags().IntVar(&clients, "clients", 10_000, "clients of the ledger")
	cmd.Flags().Float64Var(&seconds, "seconds", 5, "seconds of each measurement")
	return cmd
}

func addBackends(f *pflag.FlagSet, b *fleet.Backends) {
	f.StringVar(&b.Database, "database", "", "postgres://… for the ledger, in a schema that is dropped in the end (default a SQLite file)")
	f.StringSliceVar(&b.NATS, "nats", nil, "servers of a NATS cluster that carries nothing else (default an embedded one)")
}

// fleetUsage marks a setting out of range as a mistake on the command line.
func fleetUsage(err error, path string) error {
	if u := (*fleet.UsageError)(nil); errors.As(err, &u) {
		return usageError{err, path}
	}
	return err
}

func printFleetBench(w io.Writer, b *fleet.Result) error {
	fmt.Fprintf(w, "%d agents, rounds of %d; %s; %s of %g s\n\n", b.Agents, b.Cohort, b.Engines, count(b.Turns, "turn"), b.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "SIZE\tBYTES\tACCEPTED/S\tCOUNTED/S\tBUS ALONE/S\tLEDGER ALONE/S\tSHARE\tCHECK-INS/S\tROUNDS\tUPDATES\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.0f\t%d\t%d\t\n",
			s.Size, s.Bytes, s.Accepted, s.Counted, s.Engine.Publish, s.Engine.Count, s.Share, s.CheckIns, s.Rounds, s.Updates)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "SIZE\tPUSH p50\tp99\tCHECK-IN p50\tp99\tTO COUNTED p50\tp99 ms\tSERVER MB\tCPU ms/UPDATE\tGENERATOR'S\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%d\t%.2f\t%.2f\t\n",
			s.Size, s.Push.P50, s.Push.P99, s.CheckIn.P50, s.CheckIn.P99, s.Heard.P50, s.Heard.P99, s.RSS>>20, s.CPU, s.GeneratorCPU)
	}
	return t.Flush()
}
