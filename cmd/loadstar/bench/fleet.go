package bench

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/bench/fleet"
)

func newFleet() *cobra.Command {
	var (
		c      fleet.Config
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Load-test the server with simulated agents",
		Long: `Load-test the server with simulated agents. The server runs in its own process.
The agents run in this process, each with its own key, certificate and permanent
connection. They check in at the server's pace, fetch the weights of every
round, and push random numbers instead of training. A round needs results from
70 % of the agents (--cohort) and selects 10 % more than that. The next round
starts at once.

The shared layers are 24 KB (bose2023 with a personal head) or 170 KB (all
layers shared) in size.

The benchmark alternates between the whole server and the server's queue and
ledger in isolation. For the queue, 16 writers store results on the disk of an
embedded NATS server. For the ledger, whole batches of results are summed and
counted. SHARE is the server's counting rate divided by the rate of the slower
of the two. Rates and ratios are medians over the repetitions (--turns). Latency
percentiles are computed from all repetitions together. The agents run on the
same machine as the server; their CPU time is shown too.

The command fails if a result is rejected, lost or counted twice.`,
		Example: "  loadstar bench fleet\n  loadstar bench fleet --agents 200 --seconds 2 --turns 1 --size 24k",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			defer bar.Stop()
			b, err := fleet.Run(cmd.Context(), c, bar.Set)
			if err != nil {
				return fleetUsage(err, "bench fleet ")
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), b)
			}
			return printFleetBench(cmd.OutOrStdout(), b)
		},
	}
	f := cmd.Flags()
	addBackends(f, &c.Backends)
	f.IntVar(&c.Agents, "agents", 10_000, "number of agents, with one client each")
	f.Float64Var(&c.Cohort, "cohort", 0.7, "share of the agents that a round needs results from")
	f.StringSliceVar(&c.Sizes, "size", []string{"24k", "170k"}, "sizes of the shared layers: 24k, 170k")
	f.IntVar(&c.Turns, "turns", 3, "number of repetitions")
	f.Float64Var(&c.Seconds, "seconds", 10, "seconds per server measurement; queue and ledger take at most 5")
	f.Float64Var(&c.Rate, "rate", 0, "check-ins per second of the whole fleet (default derived from the speed of queue and ledger)")
	f.IntVar(&c.Aggregators, "aggregators", 2, "number of aggregators that count in parallel")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// newFleetEngine returns a hidden command. Command bench fleet runs it in a separate
// process to measure the bus and the ledger alone.
func newFleetEngine() *cobra.Command {
	var (
		b       fleet.Backends
		size    string
		clients int
		seconds float64
	)
	cmd := &cobra.Command{
		Use:    "fleet-engine",
		Short:  "Benchmark the server's queue and ledger alone",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(1, seconds)
			if err != nil {
				return cli.Usage(err)
			}
			r, err := fleet.Engines(cmd.Context(), b, size, clients, d)
			if err != nil {
				return fleetUsage(err, "bench fleet-engine ")
			}
			return cli.PrintLine(cmd.OutOrStdout(), r)
		},
	}
	addBackends(cmd.Flags(), &b)
	cmd.Flags().StringVar(&size, "size", "24k", "size of the shared layers: 24k or 170k")
	cmd.Flags().IntVar(&clients, "clients", 10_000, "number of clients in the ledger")
	cmd.Flags().Float64Var(&seconds, "seconds", 5, "seconds per measurement")
	return cmd
}

// newAgents returns a hidden command. The tests of the dashboard run it against a
// server of their own.
func newAgents() *cobra.Command {
	var c fleet.AgentsConfig
	cmd := &cobra.Command{
		Use:    "agents",
		Short:  "Keep simulated agents busy at a server, until interrupted",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			ready := func() {
				bar.Stop()
				fmt.Fprintln(cmd.OutOrStdout(), "ready")
			}
			return fleetUsage(fleet.Agents(cmd.Context(), c, ready, bar.Set), "bench agents ")
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Server, "server", "https://localhost:7443", "address of the server")
	f.StringVar(&c.Operator, "operator", "loadstar-data/operator", "`folder` with an operator's certificate")
	f.IntVar(&c.Agents, "agents", 42, "number of agents")
	f.IntVar(&c.Clients, "clients", 1, "number of clients of each agent")
	f.StringVar(&c.Prefix, "prefix", "virtual", "beginning of the clients' names")
	return cmd
}

func addBackends(f *pflag.FlagSet, b *fleet.Backends) {
	f.StringVar(&b.Database, "database", "", "PostgreSQL `URL` (postgres://…) for the ledger; the benchmark uses a temporary schema (default SQLite file)")
	f.StringSliceVar(&b.NATS, "nats", nil, "servers of a NATS cluster without other users (default embedded server)")
}

// fleetUsage turns err into a usageError if the cause is a setting that is out of range.
func fleetUsage(err error, path string) error {
	if u := (*fleet.UsageError)(nil); errors.As(err, &u) {
		return cli.Usage(err)
	}
	return err
}

func printFleetBench(w io.Writer, b *fleet.Result) error {
	fmt.Fprintf(w, "%d agents, rounds of %d; %s; %s of %g s\n\n", b.Agents, b.Cohort, b.Engines, cli.Count(b.Turns, "turn"), b.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "SIZE\tBYTES\tACCEPTED/S\tCOUNTED/S\tQUEUE ALONE/S\tLEDGER ALONE/S\tSHARE\tCHECK-INS/S\tROUNDS\tUPDATES\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.0f\t%d\t%d\t\n",
			s.Size, s.Bytes, s.Accepted, s.Counted, s.Engine.Publish, s.Engine.Count, s.Share, s.CheckIns, s.Rounds, s.Updates)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "SIZE\tPUSH p50\tp99\tCHECK-IN p50\tp99\tTO COUNTED p50\tp99 ms\tSERVER MB\tCPU ms/UPDATE\tAGENTS' CPU\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%d\t%.2f\t%.2f\t\n",
			s.Size, s.Push.P50, s.Push.P99, s.CheckIn.P50, s.CheckIn.P99, s.Heard.P50, s.Heard.P99, s.RSS>>20, s.CPU, s.GeneratorCPU)
	}
	return t.Flush()
}
