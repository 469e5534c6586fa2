package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"loadstar/server/bus"
)

// newNATSNode runs one server of a NATS cluster as serve needs it: for trials on one
// machine, where nobody installs one.
func newNATSNode() *cobra.Command {
	var (
		c       bus.NodeConfig
		logging logFlags
	)
	cmd := &cobra.Command{
		Use:    "nats-node",
		Short:  "Run a node of a NATS cluster, for trials",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logging.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			c.Ready = func() { fmt.Fprintf(cmd.OutOrStdout(), "nats://%s\n", c.Listen) }
			return bus.RunNode(cmd.Context(), c, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Name, "name", "", "unlike those of the other nodes")
	f.StringVar(&c.Dir, "dir", "", "where it keeps its streams")
	f.StringVar(&c.Listen, "listen", "", "address for clients")
	f.StringVar(&c.ClusterListen, "cluster", "", "address for the other nodes")
	f.StringSliceVar(&c.Routes, "routes", nil, "addresses of the other nodes")
	logging.add(f)
	return cmd
}
