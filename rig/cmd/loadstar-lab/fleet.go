package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/rig/bench/fleet"
)

// fleetOptions are the flags of the command.
type fleetOptions struct {
	c      fleet.Config
	asJSON bool
}

func newFleet() *cobra.Command {
	var o fleetOptions
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Load-test the server with simulated agents",
		Long: `Load-test the server with simulated agents. The server runs in its own process.
The agents run in this process, each with its own key, certificate and
connection. Instead of training, an agent sends random numbers as soon as it has
a task, and the server holds the call until the next task. All agents then send
at the same time and wait for each other. With --pace they send at a fixed rate,
as agents that train do. Without tasks, agents call at a fixed rate (--rate). A
round needs results from 70 % of the agents (--cohort) and selects 10 % more
agents than that. When a round ends, the next round starts immediately. The
measurement begins when all agents have called and the first round is over. It
covers whole rounds.

The shared layers have 24 kB (bose2023 with a personal head), 95 kB (dense, the
default model) or 170 kB (bose2023 with all layers shared).

The first table shows the CPU time that the server spends on a counted update,
in milliseconds. It compares this time with that of bare engines, which are
measured after each repetition. HTTP is an HTTP/1.1 call over mutual TLS with
the same bytes in both directions over as many connections. COUNT is adding and
counting whole batches in the ledger. RATIO is the server's time divided by HTTP
plus COUNT. None of these figures includes the CPU time of PostgreSQL. The
second table shows the other costs of an update. PUSH is the time from the
arrival of a result at the server until it is counted, measured within a factor
of two. TO ANSWER is the time for which the agent waits for an answer, including
the time for which the server delays the answer. Figures are medians over the
repetitions (--turns), and latencies are quantiles over all calls.

The number of disk syncs comes from the kernel. Reading it requires root and
tracefs (mount -t tracefs none /sys/kernel/tracing). Otherwise the number is -1.
With PostgreSQL, it includes the syncs of PostgreSQL's log.

The command fails if a result is rejected, lost or counted twice, or if an agent
received a verdict that contradicts the ledger. With --json the last line is the
result; its ratio and calls_per_update are the largest of all sizes.`,
		Example: "  loadstar-lab bench fleet\n  loadstar-lab bench fleet --agents 200 --seconds 2 --turns 1 --size 24k",
		Args:    cobra.NoArgs,
		RunE:    o.run,
	}
	f := cmd.Flags()
	addBackends(f, &o.c.Backends)
	f.IntVar(&o.c.Agents, "agents", 10_000, "number of agents, with one client each")
	f.Float64Var(&o.c.Cohort, "cohort", 0.7, "share of the agents whose results a round needs")
	f.StringSliceVar(&o.c.Sizes, "size", []string{"24k", "95k", "170k"}, "sizes of the shared layers: 24k, 95k, 170k")
	f.IntVar(&o.c.Turns, "turns", 3, "number of repetitions")
	f.Float64Var(&o.c.Seconds, "seconds", 10, "minimum seconds per measurement of the server; the measurement of each bare engine takes at most 5")
	f.Float64Var(&o.c.Rate, "rate", 2000, "calls per second of the whole fleet")
	f.Float64Var(&o.c.Pace, "pace", 0, "results per second of the whole fleet; 0 means that agents send at once")
	f.BoolVar(&o.c.Short, "short-connections", false, "close agents' connections between calls, to allow more agents")
	f.BoolVar(&o.asJSON, "json", false, "print one line of JSON")
	return cmd
}

func (o *fleetOptions) run(cmd *cobra.Command, _ []string) error {
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	defer bar.Stop()
	b, err := fleet.Run(cmd.Context(), o.c, bar.Set)
	if err != nil {
		return fleetUsage(err)
	}
	if o.asJSON {
		return cli.PrintLine(cmd.OutOrStdout(), b)
	}
	return printFleetBench(cmd.OutOrStdout(), b)
}

// newFleetEngine returns a hidden command. The command bench fleet runs it in a separate
// process to measure the ledger alone.
func newFleetEngine() *cobra.Command {
	var (
		b       fleet.Backends
		size    string
		clients int
		seconds float64
	)
	cmd := &cobra.Command{
		Use:    "fleet-engine",
		Short:  "Benchmark the server's ledger alone",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(1, seconds)
			if err != nil {
				return cli.Usage(err)
			}
			r, err := fleet.Engine(cmd.Context(), b, size, clients, d)
			if err != nil {
				return fleetUsage(err)
			}
			return cli.PrintLine(cmd.OutOrStdout(), r)
		},
	}
	addBackends(cmd.Flags(), &b)
	cmd.Flags().StringVar(&size, "size", "24k", "size of the shared layers: 24k, 95k or 170k")
	cmd.Flags().IntVar(&clients, "clients", 10_000, "number of clients in the ledger")
	cmd.Flags().Float64Var(&seconds, "seconds", 5, "seconds per measurement")
	return cmd
}

// newFleetHTTP returns a hidden command. The command bench fleet runs it to measure bare calls.
func newFleetHTTP() *cobra.Command {
	var (
		serve, short bool
		connections  int
	)
	cmd := &cobra.Command{
		Use:    "fleet-http",
		Short:  "Benchmark bare HTTP over mutual TLS",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if serve {
				return fleet.ServeBare(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return fleetUsage(fleet.CallBare(cmd.Context(), connections, short, cmd.InOrStdin(), cmd.OutOrStdout()))
		},
	}
	cmd.Flags().BoolVar(&serve, "serve", false, "serve calls instead of making them")
	cmd.Flags().IntVar(&connections, "connections", 1000, "number of connections")
	cmd.Flags().BoolVar(&short, "short", false, "open a connection for each call")
	return cmd
}

// newAgents returns a hidden command. The dashboard's tests run it against their own
// server.
func newAgents() *cobra.Command {
	var c fleet.AgentsConfig
	cmd := &cobra.Command{
		Use:    "agents",
		Short:  "Run simulated agents that keep a server busy, until interrupted",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			ready := func() {
				bar.Stop()
				fmt.Fprintln(cmd.OutOrStdout(), "ready")
			}
			return fleetUsage(fleet.Agents(cmd.Context(), c, ready, bar.Set))
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Server, "server", "https://localhost:7443", "address of the server")
	f.StringVar(&c.Operator, "operator", "loadstar-data/operator", "`folder` with an operator's certificate")
	f.IntVar(&c.Agents, "agents", 42, "number of agents")
	f.IntVar(&c.Clients, "clients", 1, "number of clients per agent")
	f.StringVar(&c.Prefix, "prefix", "virtual", "prefix of the clients' names")
	return cmd
}

func addBackends(f *pflag.FlagSet, b *fleet.Backends) {
	f.StringVar(&b.Database, "database", "", "PostgreSQL `URL` (postgres://…) for the ledger; the benchmark uses a temporary schema (default SQLite file)")
}

// fleetUsage turns err into a usageError if a setting is out of range.
func fleetUsage(err error) error {
	if u := (*fleet.UsageError)(nil); errors.As(err, &u) {
		return cli.Usage(err)
	}
	return err
}

func printFleetBench(w io.Writer, b *fleet.Result) error {
	how := ""
	if b.Short {
		how = " that close their connections"
	}
	fmt.Fprintf(w, "%d agents%s, %g calls a second, rounds of %d; %s; %s of %g s\n\n", b.Agents, how, b.Rate, b.Cohort, b.Engines, cli.Count(b.Turns, "turn"), b.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "SIZE\tBYTES\tCPU ms/UPDATE\tHTTP\tCOUNT\tRATIO\tCOUNTED/S\tUPDATES\tROUNDS\tSERVER MB\tLOAD\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.1f\t%.0f\t%d\t%d\t%d\t%.1f\t\n",
			s.Size, s.Bytes, s.CPU, s.BareHTTP, s.BareCount, s.Ratio, s.Counted, s.Updates, s.Rounds, s.RSS>>20, s.Load)
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "SIZE\tCALLS\tSTATEMENTS\tTRANSACTIONS\tFSYNCS\tWIRE kB\tALLOCATIONS\tkB\tPUSH p50\tp99\tTO ANSWER p50\tp99 ms\tAGENTS' CPU\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.3f\t%.3f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.0f\t%.0f\t%.2f\t\n",
			s.Size, s.Calls, s.Statements, s.Transactions, s.Fsyncs, s.Wire/1e3, s.Allocations, s.Allocated/1e3, s.Push.P50, s.Push.P99, s.Heard.P50, s.Heard.P99, s.AgentsCPU)
	}
	return t.Flush()
}
