package operate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newAudit() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "List and export the audit log"}
	cmd.AddCommand(newAuditList(), newAuditExport())
	return cmd
}

func newAuditList() *cobra.Command {
	q := &v1.ListAuditRequest{}
	cmd := serverCommand("list", "List tokens, joins, revocations, runs, releases and other events", cobra.NoArgs,
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
	cmd.Flags().StringVar(&q.Before, "before", "", "show events before the event with this `id` (--json shows ids)")
	cmd.Flags().StringVar(&q.Actor, "actor", "", "show events of this user or agent `name`")
	cmd.Flags().StringVar(&q.Action, "action", "", "show events with this action, such as 'revoke agent'")
	return cmd
}

// auditLine is an event as a line of JSON.
type auditLine struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action"`
	Subject string    `json:"subject"`
	Detail  string    `json:"detail"`
}

func newAuditExport() *cobra.Command {
	var (
		o          operatorFlags
		after, out string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Export the audit log as lines of JSON, oldest first",
		Long: `Write the audit log as lines of JSON, oldest first. Each line has an id, the
time, the actor, the action, the subject of the action and a detail.

To continue an export without omitting or repeating an event, pass the id of the
last line to --after. With -o the command appends the lines to a file, and
automatically continues after the file's last line. The command exports an event
no earlier than ten seconds after the event.`,
		Example: "  loadstar audit export -o /var/log/loadstar/audit.jsonl\n" +
			"  loadstar audit export --after 0000019a8f4c2b10-00000001-ABCDEFGH",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			w := cmd.OutOrStdout()
			if out != "" {
				if after != "" {
					return cli.Usagef("use either -o, which continues after the file's last line, or --after")
				}
				f, failed := os.OpenFile(out, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
				if failed != nil {
					return failed
				}
				defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
				if after, err = lastEvent(f); err != nil {
					return fmt.Errorf("%s: %w", out, err)
				}
				w = f
			}
			c, failed := o.dial()
			if failed != nil {
				return failed
			}
			return plain(exportAudit(cmd.Context(), c, cmp.Or(after, "0"), w))
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().StringVar(&after, "after", "", "continue after the event with this `id`")
	cmd.Flags().StringVarP(&out, "out", "o", "", "`file` to which the lines are added (default standard output)")
	return cmd
}

func exportAudit(ctx context.Context, c *operator, after string, to io.Writer) error {
	const page = 1000
	for {
		r, err := c.ListAudit(ctx, &v1.ListAuditRequest{After: after, Limit: page})
		if err != nil {
			return err
		}
		for _, e := range r.Events {
			if err := cli.PrintLine(to, auditLine{e.Id, time.UnixMilli(e.At).UTC(), e.Actor, e.Action, e.Subject, e.Detail}); err != nil {
				return err
			}
			after = e.Id
		}
		if len(r.Events) < page {
			return nil
		}
	}
}

// lastEvent returns the id in the last line of an export. It removes an incomplete last line,
// which a killed export leaves. It does not change a file that is not an export.
func lastEvent(f *os.File) (id string, err error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	// A line is shorter than this, because names and details are bounded.
	tail := make([]byte, min(info.Size(), 1<<20))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	end := bytes.LastIndexByte(tail, '\n') + 1
	var last auditLine
	if end > 0 {
		err = json.Unmarshal(tail[bytes.LastIndexByte(tail[:end-1], '\n')+1:end], &last)
	}
	torn := tail[end:]
	const begin = `{"id":"`
	if err != nil || end > 0 && last.ID == "" || !bytes.HasPrefix(torn, []byte(begin)[:min(len(torn), len(begin))]) {
		return "", errors.New("the last line is not an event of 'loadstar audit export'")
	}
	return last.ID, f.Truncate(info.Size() - int64(len(torn)))
}
