package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/doctor"
	"loadstar/cmd/loadstar/operate"
	"loadstar/internal/finding"
	"loadstar/server"
)

// doctorOptions are the flags of the command.
type doctorOptions struct {
	c       doctor.Config
	given   serverSource
	asJSON  bool
	resolve func() (server, operator string)
}

func newDoctor() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, a server and its stores, and give advice",
		Long: `Check the common problems of a server: time zones, the clock compared with the
server's and the database's, certificates and their remaining days, ports, the
folder and its users, the kernel set, the disks (free space, number of files,
read-only mounts, type of file system), the database (settings, schema, damage),
waiting results, the blobs, the backups, and the agents. 'loadstar agent check'
checks an agent.

Each line of the output is OK, WARN or FAIL, with advice. The command works
while the server runs and while it is stopped. It writes and deletes test files
and test blobs, but changes nothing else. The exit code is 3 if a check failed.

The command checks the server of --server, the server's folder, and the stores
and addresses in the server's configuration. It reads this configuration in the
same way as 'loadstar serve'.`,
		Example: "  loadstar doctor\n  loadstar doctor --dir DIR --set store.database=postgres://…",
		Args:    cobra.NoArgs,
		RunE:    o.run,
	}
	f := cmd.Flags()
	o.given.add(f)
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	o.resolve = operate.ServerFlags(f)
	return cmd
}

func (o *doctorOptions) run(cmd *cobra.Command, _ []string) error {
	o.c.Server, o.c.Operator = o.resolve()
	from, err := o.given.read(cmd.Flags())
	if err != nil {
		return err
	}
	s := serverConfig(from)
	o.c.Dir = from.Dir
	o.c.Ports = []doctor.Port{{Key: "listen", Address: s.Listen}, {Key: "operators", Address: s.Operators}, {Key: "watch", Address: s.Watch}, {Key: "web.listen", Address: from.Web.Listen}}
	o.c.Stores = func(ctx context.Context) finding.List { return server.Examine(ctx, s) }
	found := doctor.Run(cmd.Context(), o.c)
	failed := 0
	for _, f := range found {
		if f.Level == finding.Fail {
			failed++
		}
	}
	if o.asJSON {
		if err := cli.PrintJSON(cmd.OutOrStdout(), found); err != nil {
			return err
		}
	} else {
		for _, f := range found {
			fmt.Fprintf(cmd.OutOrStdout(), "%-4s  %s: %s\n", f.Level, f.Check, strings.ReplaceAll(f.Text, "\n", "\n        "))
			if f.Do != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "      to do: %s\n", f.Do)
			}
		}
	}
	switch {
	case failed == 1:
		return cli.Problems(errors.New("a check failed"))
	case failed > 1:
		return cli.Problems(fmt.Errorf("%d checks failed", failed))
	}
	return nil
}
