package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newUsers() *cobra.Command {
	cmd := &cobra.Command{Use: "users", Short: "Manage users, their roles, sessions and certificates", Long: `Manage the users of a server. Each user has a role:
  viewer    sees everything except join tokens, users and certificates
  operator  also starts and stops runs, creates join tokens, releases and
            withdraws models, revokes agents and clients
  admin     also manages users, sessions and certificates

A user signs in to the dashboard with a login link ('loadstar users invite'),
or uses the command line with a certificate ('loadstar users certificate').`}
	cmd.AddCommand(newUsersList(), newUsersAdd(), newUsersRole(), newUsersRemove(), newUsersInvite(),
		newUsersCertificate(), newUsersCertificates(), newUsersRevokeCertificate(), newUsersSessions())
	return cmd
}

// stamp formats a time of a server for people.
func stamp(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Format(time.DateTime)
}

// table writes rows with aligned columns, or as CSV if out is a table of cli.NewCSV. The caller's writer reports errors.
func table(out io.Writer, head string, rows func(w io.Writer)) {
	w := cli.NewTable(out, 0)
	fmt.Fprintln(w, head)
	rows(w)
	_ = w.Flush()
}

func newUsersList() *cobra.Command {
	return serverCommand("list", "List users, sorted by name", cobra.NoArgs, func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
		r, err := c.ListUsers(cmd.Context(), &v1.ListUsersRequest{})
		return r, func(out io.Writer) {
			table(out, "USER\tROLE\tADDED BY\tADDED", func(w io.Writer) {
				for _, u := range r.Users {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", u.Name, u.Role, u.Source, stamp(u.Created))
				}
			})
		}, err
	})
}

func newUsersAdd() *cobra.Command {
	var role string
	cmd := serverCommand("add NAME", "Add a user", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.PutUser(cmd.Context(), &v1.PutUserRequest{Name: args[0], Role: role, Only: "add"})
		return r, func(w io.Writer) {
			fmt.Fprintf(w, "added user %s with the role %s\n", r.User.Name, r.User.Role)
			fmt.Fprintf(cmd.ErrOrStderr(), "next: loadstar users invite %s (dashboard), or loadstar users certificate %s -o FOLDER (command line)\n", r.User.Name, r.User.Name)
		}, err
	})
	cmd.Example = "  loadstar users add anna --role viewer"
	cmd.Flags().StringVar(&role, "role", "viewer", "viewer, operator or admin")
	return cmd
}

func newUsersRole() *cobra.Command {
	cmd := serverCommand("role NAME ROLE", "Change the role of a user", cobra.ExactArgs(2), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.PutUser(cmd.Context(), &v1.PutUserRequest{Name: args[0], Role: args[1], Only: "change"})
		return r, func(w io.Writer) { fmt.Fprintf(w, "user %s has the role %s now\n", r.User.Name, r.User.Role) }, err
	})
	cmd.Long = "Change the role of a user to viewer, operator or admin. The change applies from the\nuser's next call, even in open sessions."
	cmd.Example = "  loadstar users role anna operator"
	return cmd
}

func newUsersRemove() *cobra.Command {
	cmd := serverCommand("remove NAME", "Remove a user", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.RemoveUser(cmd.Context(), &v1.RemoveUserRequest{Name: args[0]})
		return r, func(w io.Writer) {
			fmt.Fprintf(w, "removed user %s, and ended all sessions and certificates of that user\n", args[0])
		}, err
	})
	cmd.Long = "Remove a user. All sessions end, and all certificates and login links of the user are\nrefused from now on. What the user did stays in the audit log."
	return cmd
}

// loginLink creates a login link for a user, or for the caller if user is empty.
func (c *operator) loginLink(ctx context.Context, user string, ttl time.Duration) (*v1.CreateLoginResponse, string, error) {
	r, err := c.CreateLogin(ctx, &v1.CreateLoginRequest{User: user, TtlSeconds: int64(ttl / time.Second)})
	switch {
	case err != nil:
		return nil, "", err
	case r.Page == "":
		return nil, "", errors.New("the server has no dashboard: start it with --web 127.0.0.1:7445")
	}
	// A browser does not send the part after # to any server.
	return r, r.Page + "#/login?code=" + r.Code, nil
}

// link is the JSON output of a command that creates a login link.
type link struct {
	Link    string    `json:"link"`
	Expires time.Time `json:"expires"`
}

func newUsersInvite() *cobra.Command {
	var ttl time.Duration
	cmd := serverCommand("invite NAME", "Create a login link for a user", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, url, err := c.loginLink(cmd.Context(), args[0], ttl)
		if err != nil {
			return nil, nil, err
		}
		return link{url, time.UnixMilli(r.Expires).UTC()}, func(w io.Writer) {
			fmt.Fprintln(w, url)
			fmt.Fprintf(cmd.ErrOrStderr(), "signs in user %s once, until %s; send it only to that person\n", args[0], stamp(r.Expires))
		}, nil
	})
	cmd.Long = "Create a link that signs a user in to the dashboard. It works once, for the first person\nwho opens it, so send it only to that user. A session lasts 12 hours."
	cmd.Example = "  loadstar users invite anna"
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "time until the link expires, at most 24h")
	return cmd
}

func newUsersSessions() *cobra.Command {
	var end string
	cmd := serverCommand("sessions", "List sessions of the dashboard, or end one", cobra.NoArgs, func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
		if end != "" {
			r, err := c.EndSession(cmd.Context(), &v1.EndSessionRequest{Id: end})
			return r, func(w io.Writer) { fmt.Fprintf(w, "ended session %s\n", end) }, err
		}
		r, err := c.ListSessions(cmd.Context(), &v1.ListSessionsRequest{})
		return r, func(out io.Writer) {
			table(out, "SESSION\tUSER\tSIGNED IN BY\tSINCE\tUNTIL", func(w io.Writer) {
				for _, s := range r.Sessions {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Id, s.User, s.Via, stamp(s.Created), stamp(s.Expires))
				}
			})
		}, err
	})
	cmd.Long = "List the sessions of the dashboard, newest first: all of them for an admin, otherwise\nyour own."
	cmd.Example = "  loadstar users sessions\n  loadstar users sessions --end 3bqk7wq2nd5p"
	cmd.Flags().StringVar(&end, "end", "", "end the session with this `ID`")
	return cmd
}

func newWhoami() *cobra.Command {
	return serverCommand("whoami", "Show your user name and role on the server", cobra.NoArgs, func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
		r, err := c.Whoami(cmd.Context(), &v1.WhoamiRequest{})
		return r, func(w io.Writer) {
			fmt.Fprintf(w, "user %s with the role %s, by a %s that is valid until %s\n", r.Name, r.Role, r.Via, stamp(r.Expires))
		}, err
	})
}

func newWeb() *cobra.Command {
	cmd := &cobra.Command{Use: "web", Short: "Sign in to the dashboard"}
	login := serverCommand("login", "Create a login link for yourself", cobra.NoArgs, func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
		r, url, err := c.loginLink(cmd.Context(), "", 0)
		if err != nil {
			return nil, nil, err
		}
		return link{url, time.UnixMilli(r.Expires).UTC()}, func(w io.Writer) {
			fmt.Fprintln(w, url)
			fmt.Fprintf(cmd.ErrOrStderr(), "open this link in a browser within %s; it works once\n", time.Until(time.UnixMilli(r.Expires)).Round(time.Second))
		}, nil
	})
	login.Long = "Create a link that signs you in to the dashboard. It works once and for one minute. A\nsession lasts 12 hours."
	cmd.AddCommand(login)
	return cmd
}
