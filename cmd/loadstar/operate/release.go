package operate

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

func newRelease() *cobra.Command {
	cmd := &cobra.Command{Use: "release", Short: "Release trained models to the fleet"}
	cmd.AddCommand(newReleaseCreate(), newReleaseList(), newReleaseShow(), newReleaseWithdraw())
	return cmd
}

func newReleaseCreate() *cobra.Command {
	q := &v1.CreateReleaseRequest{}
	cmd := serverCommand("create RUN", "Release a version of a run's weights", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			run, err := c.run(cmd.Context(), args[0])
			if err != nil {
				return nil, nil, err
			}
			q.Run = run
			r, err := c.CreateRelease(cmd.Context(), q)
			return r.GetRelease(), func(w io.Writer) { fmt.Fprintln(w, releaseName(r.Release)) }, err
		})
	cmd.Long = `Release a version of a run's weights to all agents. Each client compares a
release with its current model on its own latest days, and refuses a release
that is worse. The server stores the newest ten versions of a run and all
released versions, so you can repeat an earlier release with --version.`
	cmd.Example = "  loadstar release create k3v9x2ab --name day\n  loadstar release create k3v9x2ab --name day --version 1840"
	f := cmd.Flags()
	f.Int64Var(&q.Version, "version", 0, "version of the weights (default the newest)")
	f.StringVar(&q.Role, "role", "", "fail unless the plan trains a model of this kind: personal or generic")
	f.StringVar(&q.Name, "name", "", "name of the release, which replaces older releases of the same name (default the plan's name)")
	return cmd
}

func releaseName(r *v1.ReleaseRecord) string {
	return fmt.Sprintf("%s@%d", r.Release.Name, r.Release.Number)
}

func releaseState(r *v1.ReleaseRecord) string {
	switch {
	case r.Withdrawn > 0:
		return "withdrawn " + ago(r.Withdrawn)
	case r.Offered:
		return "offered"
	}
	return "replaced"
}

func newReleaseList() *cobra.Command {
	return serverCommand("list", "List releases, newest first", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListReleases(cmd.Context(), &v1.ListReleasesRequest{})
			return r.GetReleases(), func(w io.Writer) {
				fmt.Fprintln(w, "RELEASE\tRUN\tVERSION\tROLE\tRELEASED\tSTATE")
				for _, x := range r.Releases {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", releaseName(x), x.Release.Run, x.Release.Version, x.Release.Role, ago(x.Created), releaseState(x))
				}
			}, err
		})
}

func newReleaseShow() *cobra.Command {
	var days int32
	cmd := serverCommand("show RELEASE", "Show a release and how well it works for clients", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			r, err := c.ListReleases(cmd.Context(), &v1.ListReleasesRequest{Release: args[0]})
			if err != nil {
				return nil, nil, err
			}
			if len(r.Releases) == 0 {
				return nil, nil, errors.New("the server sent no release")
			}
			x := r.Releases[0]
			s, err := c.ListReports(cmd.Context(), &v1.ListReportsRequest{Release: x.Release.Id, Days: days})
			return map[string]any{"release": x, "days": s.GetDays()}, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %s, %s, id %s\n", releaseName(x), x.Release.Role, releaseState(x), x.Release.Id)
				fmt.Fprintf(w, "run %s, version %d, released %s by %s\n", x.Release.Run, x.Release.Version, ago(x.Created), x.Actor)
				fmt.Fprintf(w, "plan %s\nweights %s\n", x.Release.Plan, x.Release.Weights)
				if len(s.Days) == 0 {
					fmt.Fprintln(w, "no client has reported")
					return
				}
				fmt.Fprintln(w, "DAY\tCLIENTS\tOF\tRELATIVE MAE\tCOVERAGE\tFALLBACK\tDRIFT")
				for _, d := range s.Days {
					fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%d\n", time.Unix(d.Day*24*3600, 0).UTC().Format(time.DateOnly), d.Clients, d.Total,
						decimal(d.RelativeMae), decimal(d.Coverage), decimal(d.Fallback), d.Drifting)
				}
			}, err
		})
	cmd.Flags().Int32Var(&days, "days", 7, "number of days with reports to show, up to 90")
	return cmd
}

// decimal formats a number that may be unknown.
func decimal(x *float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *x)
}

func newReleaseWithdraw() *cobra.Command {
	cmd := serverCommand("withdraw RELEASE", "Make agents stop using a release", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			if !strings.Contains(args[0], "@") {
				return nil, nil, fmt.Errorf("release %q has no number; write it as release list shows it, such as %s@1", args[0], args[0])
			}
			r, err := c.WithdrawRelease(cmd.Context(), &v1.WithdrawReleaseRequest{Release: args[0]})
			return r, func(w io.Writer) {
				fmt.Fprintf(w, "%s is withdrawn; agents stop using it with their next call\n", args[0])
			}, err
		})
	cmd.Long = `Make agents stop using a release. With its next call, each agent returns to the
model that it used before. You can repeat the release later.`
	return cmd
}
