package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/agent"
	"loadstar/agent/command"
	"loadstar/agent/identity"
	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/policy"
	"loadstar/internal/service"
	"loadstar/nn/kernel"
)

func newAgent() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Host clients: forecast, and train on their data",
		Long: `Host clients and train on their data. An agent joins a server once and then runs
permanently. On small devices, use the smaller binary loadstar-agent instead.`,
	}
	cmd.AddCommand(newAgentJoin(), newAgentRun(), newAgentCheck(), newAgentStatus(), newAgentAudit(), newAgentDiscover(), newAgentImport(), newAgentAccept(), newAgentModel())
	return cmd
}

const agentDir = "loadstar-agent"

func newAgentJoin() *cobra.Command {
	var dir, name, file string
	cmd := &cobra.Command{
		Use:   "join SERVER [TOKEN]",
		Short: "Join a server with a join token",
		Long: `Join a server with a join token. Give the token in a file or on standard input.
On the command line, other users of this machine can see it, and it stays in the
shell's history.`,
		Example: "  loadstar agent join https://server.example.org:7443 --token-file join.token\n" +
			"  loadstar token create | loadstar agent join https://localhost:7443 -",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && file == "" {
				return cli.Usagef("missing argument TOKEN: use --token-file FILE, or - to read the token from standard input")
			}
			token, err := identity.Token(strings.Join(args[1:], ""), file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			i, err := identity.Join(cmd.Context(), dir, args[0], token, name)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "joined %s as agent %s; certificate valid until %s\n", i.Server(), i.ID(), i.Expires().Format("2006-01-02 15:04"))
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", agentDir, "the agent's folder")
	cmd.Flags().StringVar(&name, "name", cli.Hostname(), "name of the machine, shown to operators")
	cmd.Flags().StringVar(&file, "token-file", "", "`file` with the join token, or - for standard input")
	return cmd
}

// agentRunOptions are the flags of the command.
type agentRunOptions struct {
	c                agent.Config
	data, root, part string
	live             command.Options
	logging          logFlags
}

func newAgentRun() *cobra.Command {
	var o agentRunOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Host clients until stopped",
		Long: `Host clients until stopped. With --config, the agent ingests the readings of its
clients and forecasts, alone or with a server (see docs/agent.md). With --data,
it only trains for a server, and every meter in the dataset is a client.
Readings and personal layers never leave this machine. docs/privacy.md explains
what the updates can reveal. The agent declines plans that its policy does not
allow. With --data this is the default policy, changed by --policy. If the
server is unreachable, the agent waits and reconnects. After a restart it
continues where it stopped.

The log has one line per minute while the agent trains. --log-level debug logs
every round.`,
		Example: "  loadstar agent run --config agent.yaml\n  loadstar agent run --data site.prepared\n  loadstar agent run --data datasets/sample --part 1/2",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *agentRunOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.c.Dir, "dir", agentDir, "the agent's folder")
	f.StringVar(&o.live.Config, "config", "", "the agent's configuration `file`, to ingest readings and forecast")
	f.StringVar(&o.data, "data", "", cli.DatasetUsage)
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.StringVar(&o.part, "part", "", "host only part `K/N` of the meters, such as 1/20")
	f.StringArrayVar(&o.live.Policy, "policy", nil, "change which plans the agent trains: `KEY=VALUE` with a key of policy in agent.yaml, trial for small fleets, or none; may be repeated")
	f.StringVar(&o.c.Invitations, "invitations", "", "`file` with the invitations of keepers for private plans; with --config it is train.invitations")
	f.StringVar(&o.live.Join.Server, "join", "", "`URL` of the server to join at the first start")
	f.StringVar(&o.live.Join.TokenFile, "join-token-file", "", "`file` with the join token for --join")
	f.IntVar(&o.c.Workers, "workers", runtime.NumCPU(), "number of clients to train in parallel")
	o.logging.add(f)
}

// run hosts clients.
func (o *agentRunOptions) run(cmd *cobra.Command) error {
	usual := policy.Default()
	for _, text := range o.live.Policy {
		if err := usual.Set(text); err != nil {
			return cli.Usage(err)
		}
	}
	if o.live.Config != "" {
		if o.data != "" {
			return cli.Usagef("use either --config or --data")
		}
		var err error
		if o.live.Log, err = o.logging.logger(cmd.ErrOrStderr()); err != nil {
			return err
		}
		agentOptions(cmd, &o.live)
		return command.Run(cmd.Context(), o.live)
	}
	if o.data == "" {
		return cli.Usagef("no configuration and no dataset: use --config or --data")
	}
	if err := o.live.Join.Once(cmd.Context(), o.c.Dir, cli.Hostname()); err != nil {
		return err
	}
	i, err := identity.Open(o.c.Dir)
	if err != nil {
		return err
	}
	d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), o.data, o.root)
	if err != nil {
		return err
	}
	defer closer.Close()
	if o.part != "" {
		var k, n int
		if _, err := fmt.Sscanf(o.part, "%d/%d", &k, &n); err != nil {
			return cli.Usagef("--part must have the form K/N, such as 1/20, not %q", o.part)
		}
		if d, err = d.Part(k, n); err != nil {
			return err
		}
	}
	o.c.Policy = &usual
	o.c.Dataset, o.c.Name, o.c.Server, o.c.Client, o.c.Renew, o.c.Version = d, i.ID(), i.Server(), i.HTTPClient(), i.RenewIfDue, version
	if o.c.Kernel, err = kernel.Default(); err != nil {
		return err
	}
	if o.c.Log, err = o.logging.logger(cmd.ErrOrStderr()); err != nil {
		return err
	}
	cli.CollectOften()
	o.c.Log.Info("hosting clients", "agent", i.ID(), "server", i.Server(), "clients", d.Len())
	service.Ready(cmd.Context(), o.c.Log)
	return agent.Run(cmd.Context(), o.c)
}
