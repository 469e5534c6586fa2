package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newUser() *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "Manage users, their roles, sessions and certificates", Long: `Manage the users of a server. Each user has a role:
  viewer    sees everything except join tokens, users and certificates
  operator  also starts and stops runs, creates join tokens, releases and
            withdraws models, revokes agents and clients
  admin     also manages users, sessions and certificates

A user signs in to the dashboard with a login link ('loadstar user login'), or
uses the command line with a certificate ('loadstar user certificate create').`}
	cmd.AddCommand(newUserList(), newUserAdd(), newUserRole(), newUserRemove(), newUserLogin(),
		newUserCertificate(), newUserSession())
	return cmd
}

// stamp formats a time from a server for display.
func stamp(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Format(time.DateTime)
}

// table writes rows with aligned columns, or as CSV if out is a table of cli.NewCSV. Errors are
// reported by the caller's writer.
func table(out io.Writer, head string, rows func(w io.Writer)) {
	w := cli.NewTable(out, 0)
	fmt.Fprintln(w, head)
	rows(w)
	_ = w.Flush()
}

func newUserList() *cobra.Command {
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

func newUserAdd() *cobra.Command {
	var role string
	cmd := serverCommand("add NAME", "Add a user", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.PutUser(cmd.Context(), &v1.PutUserRequest{Name: args[0], Role: role, Only: "add"})
		return r, func(w io.Writer) {
			fmt.Fprintf(w, "added user %s with the role %s\n", r.User.Name, r.User.Role)
			fmt.Fprintf(cmd.ErrOrStderr(), "next: loadstar user login %s (dashboard), or loadstar user certificate create %s -o FOLDER (command line)\n", r.User.Name, r.User.Name)
		}, err
	})
	cmd.Example = "  loadstar user add anna --role viewer"
	cmd.Flags().StringVar(&role, "role", "viewer", "viewer, operator or admin")
	return cmd
}

func newUserRole() *cobra.Command {
	cmd := serverCommand("role NAME ROLE", "Change the role of a user", cobra.ExactArgs(2), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.PutUser(cmd.Context(), &v1.PutUserRequest{Name: args[0], Role: args[1], Only: "change"})
		return r, func(w io.Writer) { fmt.Fprintf(w, "user %s has the role %s now\n", r.User.Name, r.User.Role) }, err
	})
	cmd.Long = "Change the role of a user to viewer, operator or admin. The change applies from\nthe user's next call, even in open sessions."
	cmd.Example = "  loadstar user role anna operator"
	return cmd
}

func newUserRemove() *cobra.Command {
	cmd := serverCommand("remove NAME", "Remove a user", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.RemoveUser(cmd.Context(), &v1.RemoveUserRequest{Name: args[0]})
		return r, func(w io.Writer) {
			fmt.Fprintf(w, "removed user %s, and ended all sessions and certificates of that user\n", args[0])
		}, err
	})
	cmd.Long = "Remove a user. The user's sessions end, and the server refuses the user's\ncertificates and login links from then on. The entries about the user's\nactions stay in the audit log."
	return cmd
}

// loginLink creates a login link for a user, or for the caller if user is empty.
func (c *operator) loginLink(ctx context.Context, user string, ttl time.Duration) (*v1.CreateLoginResponse, string, error) {
	r, err := c.CreateLogin(ctx, &v1.CreateLoginRequest{User: user, TtlSeconds: int64(ttl / time.Second)})
	switch {
	case err != nil:
		return nil, "", err
	case r.Page == "":
		return nil, "", errors.New("the server has no dashboard; start it with --web 127.0.0.1:7445")
	}
	// A browser does not send the part after # to any server.
	return r, r.Page + "#/login?code=" + r.Code, nil
}

// link is the JSON output of a command that creates a login link.
type link struct {
	Link    string    `json:"link"`
	Expires time.Time `json:"expires"`
}

func newUserLogin() *cobra.Command {
	var ttl time.Duration
	cmd := serverCommand("login [NAME]", "Create a login link for the dashboard", cobra.MaximumNArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		name := ""
		if len(args) > 0 {
			name = args[0]
			ttl = cmp.Or(ttl, 24*time.Hour) // the server's default suits a link that is opened immediately
		}
		r, url, err := c.loginLink(cmd.Context(), name, ttl)
		if err != nil {
			return nil, nil, err
		}
		return link{url, time.UnixMilli(r.Expires).UTC()}, func(w io.Writer) {
			fmt.Fprintln(w, url)
			if name == "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "open this link in a browser within %s; it works once\n", time.Until(time.UnixMilli(r.Expires)).Round(time.Second))
				return
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "signs in user %s once, until %s; send it only to that person\n", name, stamp(r.Expires))
		}, nil
	})
	cmd.Long = "Create a link that signs a user in to the dashboard: the user with the given\nname, or yourself. The link works once, for the first person who opens it, so\nsend it only to that user. A session lasts 12 hours."
	cmd.Example = "  loadstar user login\n  loadstar user login anna"
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "time until the link expires, at most 24h (default 1m for yourself, 24h for other users)")
	return cmd
}

func newUserSession() *cobra.Command {
	cmd := &cobra.Command{Use: "session", Short: "List and end sessions of the dashboard"}
	list := serverCommand("list", "List sessions, newest first", cobra.NoArgs, func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
		r, err := c.ListSessions(cmd.Context(), &v1.ListSessionsRequest{})
		return r, func(out io.Writer) {
			table(out, "SESSION\tUSER\tSIGNED IN BY\tSINCE\tUNTIL", func(w io.Writer) {
				for _, s := range r.Sessions {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Id, s.User, s.Via, stamp(s.Created), stamp(s.Expires))
				}
			})
		}, err
	})
	list.Long = "List the sessions of the dashboard, newest first. An admin sees all sessions,\nother users see only their own."
	end := serverCommand("end SESSION", "End a session", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.EndSession(cmd.Context(), &v1.EndSessionRequest{Id: args[0]})
		return r, func(w io.Writer) { fmt.Fprintf(w, "ended session %s\n", args[0]) }, err
	})
	end.Example = "  loadstar user session end 3bqk7wq2nd5p"
	cmd.AddCommand(list, end)
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
