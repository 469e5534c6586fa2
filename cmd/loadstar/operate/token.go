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

func newToken() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Create, list and revoke join tokens"}
	cmd.AddCommand(newTokenCreate(), newTokenList(), newTokenRevoke())
	return cmd
}

// tokenClients is the default limit on an agent's clients. Most agents host the meters of a
// building or a feeder. A stranger with a leaked token must not be able to outnumber a fleet's
// clients.
const tokenClients = 100

func newTokenCreate() *cobra.Command {
	var (
		o      operatorFlags
		q      v1.CreateTokenRequest
		ttl    time.Duration
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a join token",
		Long: `Create a join token, which lets one or more agents join until it expires. The
token is a secret and is shown only once. The server stores only a hash of the
token. The token contains the fingerprint of the certificate that signs the
server's certificate, so an agent cannot be redirected to another server. The
token expires with that certificate (see 'loadstar pki rotate').

Each agent that joins with the token can host up to --clients clients, whose
names must match --names. The server refuses other clients. In a pattern, *
stands for any characters except /, ? for one such character, and [a-c] for one
of a set.`,
		Example: "  loadstar token create >join.token\n  loadstar token create --uses 200 --ttl 720h --note 'feeder 12'\n  loadstar token create --clients 12 --names 'feeder-12-*'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			q.TtlSeconds = int64(ttl / time.Second)
			t, err := c.CreateToken(cmd.Context(), &q)
			if err != nil {
				return plain(err)
			}
			// Operators may have a separate address, at which the server refuses agents.
			address := cmp.Or(t.Server, c.server)
			if asJSON {
				return cli.PrintLine(cmd.OutOrStdout(), map[string]any{"token": t.Token, "id": t.Id, "expires": time.UnixMilli(t.Expires).UTC(), "server": address})
			}
			fmt.Fprintln(cmd.OutOrStdout(), t.Token)
			fmt.Fprintf(cmd.ErrOrStderr(), "token %s, valid for %s with %s each, until %s; write it to a file, and join with:\n  loadstar agent join %s --token-file FILE\n",
				t.Id, cli.Count(int(q.Uses), "agent"), allowed(q.Clients, q.Pattern), time.UnixMilli(t.Expires).Format(time.DateTime), address)
			return nil
		},
	}
	f := cmd.Flags()
	o.add(f)
	f.Int64Var(&q.Uses, "uses", 1, "number of agents that can join with the token")
	f.Int64Var(&q.Clients, "clients", tokenClients, "maximum number of clients of each agent that joins with the token; 0 means the server's limit")
	f.StringVar(&q.Pattern, "names", "", "`pattern` that the names of the agents' clients must match, such as 'feeder-12-*'")
	f.DurationVar(&ttl, "ttl", 24*time.Hour, "time until the token expires")
	f.StringVar(&q.Note, "note", "", "note for people, in the list of tokens and the audit log")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// allowed describes which clients a token permits an agent to host.
func allowed(clients int64, pattern string) string {
	text := "any number of clients"
	if clients > 0 {
		text = "up to " + cli.Count(int(clients), "client")
	}
	if pattern != "" {
		text += " named " + pattern
	}
	return text
}

func newTokenList() *cobra.Command {
	q := &v1.ListTokensRequest{}
	cmd := serverCommand("list", "List join tokens, newest first", cobra.NoArgs, func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
		r, err := c.ListTokens(cmd.Context(), q)
		return r, func(out io.Writer) {
			table(out, "TOKEN\tCREATED\tBY\tJOINED\tLAST JOIN\tLEFT\tUNTIL\tCLIENTS\tNAMES\tSTATE\tNOTE", func(w io.Writer) {
				for _, t := range r.Tokens {
					clients := "any"
					if t.Clients > 0 {
						clients = fmt.Sprint(t.Clients)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", t.Id, stamp(t.Created), cmp.Or(t.Actor, "-"), t.Joined, stamp(t.Used), t.Uses, stamp(t.Expires),
						clients, cmp.Or(t.Pattern, "any"), tokenState(t, time.Now()), cmp.Or(t.Note, "-"))
				}
			})
			if n := len(r.Tokens); n > 0 && n == int(q.Limit) {
				fmt.Fprintf(out, "more: --after %s\n", r.Tokens[n-1].Id)
			}
		}, err
	})
	cmd.Long = `List join tokens with their creators, the number of agents that joined, and
their limits. The tokens themselves are not stored and cannot be shown again.
'loadstar fleet list --token TOKEN' lists the agents that joined with a token.`
	cmd.Flags().StringVar(&q.After, "after", "", "list tokens after this `id`")
	cmd.Flags().Int32Var(&q.Limit, "limit", 100, "maximum number of tokens, up to 1000")
	return cmd
}

func tokenState(t *v1.Token, now time.Time) string {
	switch {
	case t.Revoked != 0:
		return "revoked"
	case t.Uses <= 0:
		return "used up"
	case t.Expires <= now.UnixMilli():
		return "expired"
	}
	return "valid"
}

func newTokenRevoke() *cobra.Command {
	cmd := serverCommand("revoke TOKEN", "Revoke a join token", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.RevokeToken(cmd.Context(), &v1.RevokeTokenRequest{Id: args[0]})
		return r, func(w io.Writer) {
			fmt.Fprintf(w, "revoked token %s; %s joined with it\n", r.Token.Id, cli.Count(int(r.Token.Joined), "agent"))
			if r.Token.Joined > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "these agents are not revoked; list them with loadstar fleet list --token %s, and revoke any that you do not know\n", r.Token.Id)
			}
		}, err
	})
	cmd.Long = `Revoke a join token. After that, no agent can join with the token. Agents that
have already joined are not affected. TOKEN is an id from 'loadstar token list',
and can be shortened.`
	cmd.Example = "  loadstar token revoke 3f9c2a71"
	return cmd
}
