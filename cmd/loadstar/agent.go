package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"loadstar/agent"
	"loadstar/agent/identity"
	"loadstar/nn/kernel"
)

func newAgent() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Host clients: train where the readings are",
		Long: `Host clients: train where the readings are. An agent joins a server once, and then runs
as long as its machine does. The binary loadstar-agent does the same on small devices.`,
	}
	cmd.AddCommand(newAgentJoin(), newAgentRun())
	return cmd
}

const agentDir = "loadstar-agent"

func newAgentJoin() *cobra.Command {
	var dir, name string
	cmd := &cobra.Command{
		Use:     "join SERVER TOKEN",
		Short:   "Join a server with a token",
		Example: "  loadstar agent join https://server.example.org:7443 ls1-…",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			i, err := identity.Join(cmd.Context(), dir, args[0], args[1], name)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "joined %s as agent %s, certified until %s\n", i.Server(), i.ID(), i.Expires().Format("2006-01-02 15:04"))
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", agentDir, "the agent's folder")
	cmd.Flags().StringVar(&name, "name", hostname(), "what the machine is called, for people")
	return cmd
}

func newAgentRun() *cobra.Command {
	var (
		c                agent.Config
		data, root, part string
		logging          logFlags
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Host the clients of a dataset until stopped",
		Long: `Host the clients of a dataset until stopped: every meter in it is a client. Readings and
personal layers stay in the dataset and in the agent's folder. While the server is
away the agent waits, and goes on where it was; the same after a restart.`,
		Example: "  loadstar agent run --data site.prepared\n  loadstar agent run --data datasets/hog-core42.yaml --part 1/2",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if data == "" {
				return usageError{fmt.Errorf("which readings? give --data"), "agent run "}
			}
			i, err := identity.Open(c.Dir)
			if err != nil {
				return err
			}
			d, closer, err := openDataset(data, root)
			if err != nil {
				return err
			}
			defer closer.Close()
			if part != "" {
				var k, n int
				if _, err := fmt.Sscanf(part, "%d/%d", &k, &n); err != nil {
					return usageError{fmt.Errorf("--part is such as 1/20, not %q", part), "agent run "}
				}
				if d, err = d.Part(k, n); err != nil {
					return err
				}
			}
			c.Dataset, c.Server, c.Client, c.Renew = d, i.Server(), i.HTTPClient(), i.RenewIfDue
			if c.Kernel, err = kernel.Default(); err != nil {
				return err
			}
			if c.Log, err = logging.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			collectOften()
			c.Log.Info("hosting clients", "agent", i.ID(), "server", i.Server(), "clients", d.Len())
			return agent.Run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Dir, "dir", agentDir, "the agent's folder")
	f.StringVar(&data, "data", "", "dataset: a description, a folder with one, or a prepared file")
	f.StringVar(&root, "root", "", rootUsage)
	f.StringVar(&part, "part", "", "host only part K of N of the meters, such as 1/20")
	f.IntVar(&c.Workers, "workers", runtime.NumCPU(), "clients to train at a time")
	logging.add(f)
	return cmd
}
