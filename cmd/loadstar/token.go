package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

func newToken() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Let agents join"}
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
		Short: "Make a token with which agents join",
		Long: `Make a token with which agents join, once or several times, until it expires. It is
shown once: the server keeps only its hash. It also says by which certificate the
server is known, so that an agent cannot be lured to another.`,
		Example: "  loadstar token create\n  loadstar token create --uses 200 --ttl 720h --note 'feeder 12'",
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
				return printLine(cmd.OutOrStdout(), map[string]any{"token": t.Token, "expires": time.UnixMilli(t.Expires).UTC()})
			}
			fmt.Fprintln(cmd.OutOrStdout(), t.Token)
			fmt.Fprintf(cmd.ErrOrStderr(), "for %s, until %s:\n  loadstar agent join %s TOKEN\n", count(int(uses), "agent"), time.UnixMilli(t.Expires).Format(time.DateTime), c.server)
			return nil
		},
	}
	f := cmd.Flags()
	o.add(f)
	f.Int64Var(&uses, "uses", 1, "how many agents may join with it")
	f.DurationVar(&ttl, "ttl", 24*time.Hour, "for how long")
	f.StringVar(&note, "note", "", "what it is for, in the audit log")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
