package operate

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newToken() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Create join tokens"}
	cmd.AddCommand(newTokenCreate())
	return cmd
}

func newTokenCreate() *cobra.Command {
	var (
		o      operatorFlags
		uses   int64
		ttl    time.Duration
		note   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a join token",
		Long: `Create a join token, which lets one or more agents join until it expires. The
token is a secret and is shown once; the server stores only its hash. It
contains the fingerprint of the server's root certificate, so an agent cannot be
redirected to another server.`,
		Example: "  loadstar token create >join.token\n  loadstar token create --uses 200 --ttl 720h --note 'feeder 12'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			t, err := c.CreateToken(cmd.Context(), &v1.CreateTokenRequest{Note: note, Uses: uses, TtlSeconds: int64(ttl / time.Second)})
			if err != nil {
				return plain(err)
			}
			if asJSON {
				return cli.PrintLine(cmd.OutOrStdout(), map[string]any{"token": t.Token, "expires": time.UnixMilli(t.Expires).UTC()})
			}
			fmt.Fprintln(cmd.OutOrStdout(), t.Token)
			fmt.Fprintf(cmd.ErrOrStderr(), "valid for %s, until %s; write it to a file, and join with:\n  loadstar agent join %s --token-file FILE\n", cli.Count(int(uses), "agent"), time.UnixMilli(t.Expires).Format(time.DateTime), c.server)
			return nil
		},
	}
	f := cmd.Flags()
	o.add(f)
	f.Int64Var(&uses, "uses", 1, "number of agents that may join with it")
	f.DurationVar(&ttl, "ttl", 24*time.Hour, "time until it expires")
	f.StringVar(&note, "note", "", "note for the audit log")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
