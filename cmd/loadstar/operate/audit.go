package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

func newAudit() *cobra.Command {
	q := &v1.ListAuditRequest{}
	cmd := serverCommand("audit", "Show the audit log: tokens, joins, revocations, runs and releases", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListAudit(cmd.Context(), q)
			return r.GetEvents(), func(w io.Writer) {
				fmt.Fprintln(w, "TIME\tACTOR\tACTION\tSUBJECT\tDETAIL")
				for _, e := range r.Events {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", time.UnixMilli(e.At).Format(time.DateTime), e.Actor, e.Action, e.Subject, e.Detail)
				}
			}, err
		})
	cmd.Flags().Int32Var(&q.Limit, "limit", 50, "maximum number of events, newest first")
	cmd.Flags().StringVar(&q.Before, "before", "", "show events before the one with this `id` (--json shows ids)")
	cmd.Flags().StringVar(&q.Actor, "actor", "", "show events of this user or agent `name`")
	cmd.Flags().StringVar(&q.Action, "action", "", "show events with this action, such as 'revoke agent'")
	return cmd
}
