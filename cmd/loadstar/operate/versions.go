package operate

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newRunVersions() *cobra.Command {
	cmd := serverCommand("versions RUN", "List the stored versions of a run's weights, newest first", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			id, err := c.run(cmd.Context(), args[0])
			if err != nil {
				return nil, nil, err
			}
			r, err := c.ListVersions(cmd.Context(), &v1.ListVersionsRequest{Run: id})
			return r.GetVersions(), func(w io.Writer) {
				fmt.Fprintln(w, "VERSION\tCREATED\tORIGIN\tLARGEST NORM")
				for _, v := range r.Versions {
					origin, norm := "merge", "-"
					if v.RolledBack {
						origin = fmt.Sprintf("version %d", v.From)
					} else if v.Version == 0 {
						origin = "start"
					}
					if n := v.Limits.GetNorm(); n > 0 {
						norm = fmt.Sprintf("%.4g", n)
					}
					fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", v.Version, ago(v.Created), origin, norm)
				}
			}, err
		})
	cmd.Long = `List the stored versions of a run's shared weights. The server keeps the newest
ten. Updates that are trained from a version are clipped to LARGEST NORM.`
	return cmd
}

func newRunRollback() *cobra.Command {
	var o operatorFlags
	cmd := &cobra.Command{
		Use:   "rollback RUN VERSION",
		Short: "Return a run to an earlier version of its weights",
		Long: `Return a run to an earlier version of its shared weights and of the server's
state. The weights become a new version, and the versions in between stay
stored. If the run continues, its open round is abandoned and the next round
trains from the new version. Personal layers at the clients do not change.
'loadstar run versions' lists the stored versions.`,
		Example: "  loadstar run rollback @last 41",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			version, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || version < 0 {
				return cli.Usagef("VERSION is %q, want a number; see loadstar run versions %s", args[1], args[0])
			}
			c, run, err := o.dialRun(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := c.RollBackRun(cmd.Context(), &v1.RollBackRunRequest{Run: run, Version: version})
			if err != nil {
				return plain(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "rolled back run %s: version %d has the weights of version %d\n", run, r.Version, version)
			return err
		},
	}
	o.add(cmd.Flags())
	return cmd
}
