package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

func newClients() *cobra.Command {
	cmd := &cobra.Command{Use: "clients", Short: "List and revoke clients"}
	cmd.AddCommand(newClientsList(), newClientsRevoke())
	return cmd
}

func newClientsList() *cobra.Command {
	var (
		o      operatorFlags
		after  string
		limit  int32
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List clients, sorted by name",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			r, err := c.ListClients(cmd.Context(), &v1.ListClientsRequest{After: after, Limit: limit})
			if err != nil {
				return plain(err)
			}
			if asJSON {
				return printLine(cmd.OutOrStdout(), r)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "CLIENT\tAGENT\tMACHINE\tSEEN\t")
			for _, x := range r.Clients {
				note := ""
				if x.Revoked {
					note = "revoked"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", x.Name, x.Agent, x.AgentName, ago(x.Seen), note)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s on %s, not counting revoked ones\n", count(int(r.Total), "client"), count(int(r.Agents), "agent"))
			if n := len(r.Clients); n > 0 && n < int(r.Total) {
				fmt.Fprintf(cmd.OutOrStdout(), "more: --after %s\n", r.Clients[n-1].Name)
			}
			return nil
		},
	}
	f := cmd.Flags()
	o.add(f)
	f.StringVar(&after, "after", "", "list clients after this name")
	f.Int32Var(&limit, "limit", 100, "maximum number of clients, up to 1000")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newClientsRevoke() *cobra.Command {
	var (
		o     operatorFlags
		agent bool
	)
	cmd := &cobra.Command{
		Use:   "revoke CLIENT",
		Short: "Revoke a client, or an agent with all its clients",
		Long: `Revoke a client, or an agent with all its clients. The server rejects all
further calls on its behalf and withdraws its open tasks. Updates that are
already counted stay counted. Another agent may join and host the clients of a
revoked agent.`,
		Example: "  loadstar clients revoke meter-0042\n  loadstar clients revoke --agent 3bqk7wq2nd5p",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			r := &v1.RevokeRequest{Client: args[0]}
			if agent {
				r = &v1.RevokeRequest{Agent: args[0]}
			}
			_, err = c.Revoke(cmd.Context(), r)
			return plain(err)
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&agent, "agent", false, "treat the argument as an agent ID, and revoke the agent with all its clients")
	return cmd
}

// ago formats the time since ms, in Unix milliseconds, for example as "12s ago".
func ago(ms int64) string {
	if ms == 0 {
		return "never"
	}
	return time.Since(time.UnixMilli(ms)).Round(time.Second).String() + " ago"
}
