package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

func newAudit() *cobra.Command {
	var limit int32
	cmd := serverCommand("audit", "Show the audit log: tokens, joins, revocations, runs and releases", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListAudit(cmd.Context(), &v1.ListAuditRequest{Limit: limit})
			return r.GetEvents(), func(w io.Writer) {
				for _, e := range r.Events {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", time.UnixMilli(e.At).Format(time.DateTime), e.Actor, e.Action, e.Subject, e.Detail)
				}
			}, err
		})
	cmd.Flags().Int32Var(&limit, "limit", 50, "maximum number of events, newest first")
	return cmd
}
