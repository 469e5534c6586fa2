package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"loadstar/server/bus"
)

// newNATSNode returns a command that runs one node of a NATS cluster with the settings that
// serve needs. The chaos test uses it to start a cluster without a NATS installation.
func newNATSNode() *cobra.Command {
	var (
		c       bus.NodeConfig
		logging logFlags
	)
	cmd := &cobra.Command{
		Use:    "nats-node",
		Short:  "Run a node of a NATS cluster, for tests",
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
	f.StringVar(&c.Name, "name", "", "name of the node, unique in the cluster")
	f.StringVar(&c.Dir, "dir", "", "folder for the streams")
	f.StringVar(&c.Listen, "listen", "", "address for clients")
	f.StringVar(&c.ClusterListen, "cluster", "", "address for the other nodes")
	f.StringSliceVar(&c.Routes, "routes", nil, "addresses of the other nodes")
	f.StringVar(&c.Advertise, "advertise", "", "address that clients learn (default the one of --listen)")
	f.StringVar(&c.SystemPassword, "system-password", "", "password of the user system, who can remove a lost node")
	logging.add(f)
	return cmd
}
