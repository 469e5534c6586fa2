package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

func newAudit() *cobra.Command {
	var (
		o      operatorFlags
		limit  int32
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show the audit log: tokens, joins, revocations and runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			r, err := c.ListAudit(cmd.Context(), &v1.ListAuditRequest{Limit: limit})
			if err != nil {
				return plain(err)
			}
			if asJSON {
				return printLine(cmd.OutOrStdout(), r.Events)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			for _, e := range r.Events {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", time.UnixMilli(e.At).Format(time.DateTime), e.Actor, e.Action, e.Subject, e.Detail)
			}
			return w.Flush()
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().Int32Var(&limit, "limit", 50, "maximum number of events, newest first")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
