package main

import (
	"errors"
	"flag"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/agent/command"
	"loadstar/cmd/loadstar/cli"
	"loadstar/series"
)

// newAgent returns the commands of an agent, which this program shares with loadstar-agent.
func newAgent() *cobra.Command {
	top := &cobra.Command{
		Use:   "agent",
		Short: "Host clients: forecast, and train on their data",
		Long: `Host clients and train on their data. An agent joins a server once and then runs
permanently. On small devices, use the smaller binary loadstar-agent instead.`,
	}
	p := &command.Program{Name: "loadstar agent", Version: version, Workers: runtime.NumCPU(), Data: cli.DatasetUsage}
	var root string
	p.Open = func(path string) (*series.Dataset, io.Closer, error) { return cli.OpenPlausible(p.Err, path, root) }
	groups := map[string]*cobra.Command{"": top}
	for _, c := range p.Commands() {
		cmd := agentCommand(p, c)
		if c.Name == "run" {
			cmd.Flags().StringVar(&root, "root", "", cli.RootUsage)
		}
		group, _, nested := strings.Cut(c.Name, " ")
		if !nested {
			group = ""
			groups[c.Name] = cmd
		}
		groups[group].AddCommand(cmd)
	}
	return top
}

// agentCommand returns the command c of an agent as a command of this program.
func agentCommand(p *command.Program, c *command.Command) *cobra.Command {
	name := c.Name[strings.LastIndex(c.Name, " ")+1:]
	cmd := &cobra.Command{Use: strings.TrimSpace(name + " " + c.Arguments), Short: c.Short, Long: c.Long, Example: c.Example}
	if c.Run == nil {
		return cmd
	}
	set := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	c.Flags(set)
	cmd.Flags().AddGoFlagSet(set)
	cmd.Args = cobra.RangeArgs(c.Min, c.Max)
	if c.Max < 0 {
		cmd.Args = cobra.MinimumNArgs(c.Min)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p.In, p.Out, p.Err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		err := c.Run(cmd.Context(), args)
		if errors.Is(err, command.ErrUsage) {
			return cli.Usage(err)
		}
		return err
	}
	return cmd
}
