package operate

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newClient() *cobra.Command {
	cmd := &cobra.Command{Use: "client", Short: "List, show, revoke and free clients"}
	cmd.AddCommand(newClientList(), newClientShow(), newClientFindings(), newClientRevoke(), newClientFree())
	return cmd
}

func newClientList() *cobra.Command {
	q := &v1.ListClientsRequest{}
	cmd := serverCommand("list", "List clients, sorted by name", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListClients(cmd.Context(), q)
			return r, func(out io.Writer) {
				w := cli.NewTable(out, 0)
				fmt.Fprintln(w, "CLIENT\tAGENT\tMACHINE\tSEEN\tPROTOCOL\tRELEASE\t")
				for _, x := range r.Clients {
					note := clientState(x)
					if !x.Revoked && len(x.Also) == 0 {
						note = "" // the usual state
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, x.Agent, x.AgentName, ago(x.Seen), protocolOf(x.Protocol), releaseOf(x), note)
				}
				_ = w.Flush() // the caller's writer reports errors
				fmt.Fprintf(out, "%s on %s, not counting revoked ones\n", cli.Count(int(r.Total), "client"), cli.Count(int(r.Agents), "agent"))
				if r.Next != "" {
					fmt.Fprintf(out, "more: --after %s\n", r.Next)
				}
			}, err
		})
	cmd.Flags().StringVar(&q.After, "after", "", "list clients after this name")
	cmd.Flags().Int32Var(&q.Limit, "limit", 100, "maximum number of clients, up to 1000")
	cmd.Flags().StringVar(&q.Name, "name", "", "list clients whose name begins with this `text`")
	cmd.Flags().StringVar(&q.Agent, "agent", "", "list clients of the agent with this `id`")
	return cmd
}

// releaseOf returns the release that a client uses, according to its newest report.
func releaseOf(c *v1.Client) string {
	if c.Reported == 0 {
		return "-"
	}
	return cmp.Or(c.Release, "none")
}

func newClientRevoke() *cobra.Command {
	var (
		o     operatorFlags
		agent bool
	)
	cmd := &cobra.Command{
		Use:   "revoke CLIENT",
		Short: "Revoke a client, or an agent with all its clients",
		Long: `Revoke a client, or an agent with all its clients. The server rejects all
further calls on behalf of the revoked client or agent, and withdraws its open
tasks. Updates that have been counted stay counted. The clients of a revoked
agent stay bound to it until 'loadstar client free' releases them.`,
		Example: "  loadstar client revoke meter-0042\n  loadstar client revoke --agent 3bqk7wq2nd5p",
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
			if _, err = c.Revoke(cmd.Context(), r); err != nil {
				return plain(err)
			}
			if agent {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "revoked agent %s with all its clients; the server refuses its next call\nto let other agents have the clients: loadstar client free --agent %s\n", args[0], args[0])
			} else {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "revoked client %s; the server refuses its next results\n", args[0])
			}
			return err
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&agent, "agent", false, "treat the argument as an agent ID, and revoke the agent with all its clients")
	return cmd
}

func newClientFree() *cobra.Command {
	q := &v1.FreeClientsRequest{}
	cmd := serverCommand("free [CLIENT]", "Let other agents have the clients of a revoked agent", cobra.MaximumNArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			if q.Agent == "" {
				return nil, nil, cli.Usagef("name the revoked agent with --agent")
			}
			if len(args) > 0 {
				q.Client = args[0]
			}
			r, err := c.FreeClients(cmd.Context(), q)
			return r, func(w io.Writer) {
				fmt.Fprintf(w, "freed %s of agent %s; the first agent that announces a freed client gets it\n", cli.Count(int(r.Clients), "client"), q.Agent)
			}, err
		})
	cmd.Long = `Let other agents take over all clients of a revoked agent, or only CLIENT. The
first agent that announces such a client then gets it, within the limits of the
agent's token. A client that was itself revoked stays revoked. An agent repeats
the announcement of refused clients within ten minutes, or when it starts.`
	cmd.Example = "  loadstar client free --agent 3bqk7wq2nd5p\n  loadstar client free --agent 3bqk7wq2nd5p meter-0042"
	cmd.Flags().StringVar(&q.Agent, "agent", "", "`id` of the revoked agent")
	return cmd
}

// ago formats the time since ms, in Unix milliseconds, for example as "12s ago".
func ago(ms int64) string {
	if ms == 0 {
		return "never"
	}
	return time.Since(time.UnixMilli(ms)).Round(time.Second).String() + " ago"
}
