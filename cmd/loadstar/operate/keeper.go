package operate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/disk"
	"loadstar/internal/service"
	core "loadstar/keeper"
)

const defaultDir = "keeper-data"

// KeeperCommand returns 'loadstar keeper'.
func KeeperCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "keeper",
		Short: "Hold the keys of private runs, so that the server learns only sums",
		Long: `Hold the keys of private runs. In a private run, agents mask their results with
keys that they share with a keeper. If the keeper's own rules allow it, the
keeper gives the server the sum of the masks of a round, once. The keeper never
sees a result.

The keeper protects against the server's operator only if another organization
runs it. Server and keeper together can read every result.`,
	}
	cmd.PersistentFlags().StringVar(&dir, "dir", defaultDir, "the keeper's `folder`")
	cmd.AddCommand(newInit(&dir), newKeeperRun(&dir), newInvite(&dir), newMember(&dir), newApprove(&dir), newLog(&dir), newShow(&dir))
	return cmd
}

func newInit(dir *string) *cobra.Command {
	c := core.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create a keeper's folder, with a new identity",
		Long: `Create a keeper's folder with a new identity and the file keeper.yaml, and print
the identity. The server's operator needs the identity for 'loadstar serve', and
the host of every agent needs it for the agent's policy. Send the identity to
hosts over a trusted channel, because the privacy of their readings depends on
it.`,
		Example: "  loadstar keeper init --fleet north --server sha256:…",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := c.Pins(); err != nil {
				return cli.Usage(err)
			}
			var text strings.Builder
			fmt.Fprintf(&text, "# docs/how-to/keeper.md explains the keys.\nfleet: %q\nlisten: %q\nservers: [%s]\nleast: %d\nquorum: %g\ncell: %d\nage: %s\nmembers: %s\nplans: %s\ndaily: %d\n",
				c.Fleet, c.Listen, strings.Join(c.Servers, ", "), c.Least, c.Quorum, c.Cell, c.Age, c.Members, c.Plans, c.Daily)
			if _, err := core.ParseConfig([]byte(text.String())); err != nil {
				return cli.Usage(err)
			}
			pin, err := core.Create(*dir)
			if err != nil {
				return err
			}
			err = disk.WritePrivate(filepath.Join(*dir, core.ConfigName), func(f *os.File) error {
				_, err := io.WriteString(f, text.String())
				return err
			})
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), pin)
				fmt.Fprintf(cmd.ErrOrStderr(), "this is the keeper's identity; settings are in %s\nnext: loadstar keeper run --dir %s\n", filepath.Join(*dir, core.ConfigName), *dir)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Fleet, "fleet", c.Fleet, "name of the fleet")
	f.StringVar(&c.Listen, "listen", c.Listen, "address for the server")
	f.StringSliceVar(&c.Servers, "server", nil, "`identity` of a server that is allowed to call")
	f.Int64Var(&c.Least, "least", c.Least, "minimum number of agents in a sum")
	f.Float64Var(&c.Quorum, "quorum", c.Quorum, "minimum share of the members of each cell that a sum must include")
	f.Var(&durationFlag{&c}, "age", "time from a member's enrolment to its first sum")
	f.StringVar(&c.Members, "members", c.Members, "who can be a member: invited (agents with an invitation) or server (all agents that the server names)")
	f.StringVar(&c.Plans, "plans", c.Plans, "plans that the keeper accepts: any or approved")
	return cmd
}

// durationFlag is the value of the key age, which may be in days.
type durationFlag struct{ c *core.Config }

func (d *durationFlag) String() string {
	if d.c == nil {
		return ""
	}
	return d.c.Age.String()
}

func (d *durationFlag) Type() string { return "duration" }

func (d *durationFlag) Set(s string) error { return d.c.SetAge(s) }

func newKeeperRun(dir *string) *cobra.Command {
	level := slog.LevelInfo
	cmd := &cobra.Command{
		Use:     "run",
		Short:   "Run the keeper",
		Example: "  loadstar keeper run --dir keeper-data",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			return run(cmd.Context(), *dir, cmd.OutOrStdout(), log)
		},
	}
	cmd.Long = "Run the keeper until it is stopped. Settings come from keeper.yaml in the\nkeeper's folder. Commands such as 'loadstar keeper invite' work while the keeper\nruns."
	return cmd
}

func run(ctx context.Context, dir string, out io.Writer, log *slog.Logger) error {
	c, err := core.ReadConfig(dir)
	if err != nil {
		return err
	}
	pins, err := c.Pins()
	if err != nil {
		return err
	}
	if len(pins) == 0 {
		log.Warn("no server may call; add one to servers in " + core.ConfigName)
	}
	if c.Members == "server" {
		log.Warn("members: server: the server names the members, so the keeper does not protect against a server that lies")
	}
	o := c.Options()
	o.Log = log
	k, err := core.Open(dir, o)
	if err != nil {
		return err
	}
	l, err := service.Listen("listen", c.Listen)
	if err != nil {
		return errors.Join(err, k.Close())
	}
	fmt.Fprintf(out, "keeper %s of fleet %s on %s\n", k.Pin(), c.Fleet, l.Addr())
	service.Ready(ctx, log)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.Serve(ctx, l, pins) })
	group.Go(func() error { return k.ServeControl(ctx, dir) })
	group.Go(func() error { return rotate(ctx, k, log) })
	return errors.Join(group.Wait(), k.Close())
}

// rotate replaces old keys even when no server calls the keeper.
func rotate(ctx context.Context, k *core.Keeper, log *slog.Logger) error {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if err := k.Rotate(); err != nil {
				log.Error("cannot replace old keys", "error", err)
			}
		}
	}
}

func newInvite(dir *string) *cobra.Command {
	var (
		uses int64
		ttl  time.Duration
		note string
	)
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "Create an invitation for agents",
		Long: `Create an invitation. The host of an agent puts the invitation into the agent's
settings, and the server never sees it. Give it to the host yourself. The
server's operator must not see it, because the operator could use it to invent
members.`,
		Example: "  loadstar keeper invite --note \"Maple Street 4\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := core.Ask(cmd.Context(), *dir, core.Command{Do: "invite", Uses: uses, Until: time.Now().Add(ttl), Note: note})
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), r.Code)
			}
			return err
		},
	}
	cmd.Flags().Int64Var(&uses, "uses", 1, "number of agents that can use the invitation")
	cmd.Flags().DurationVar(&ttl, "ttl", 30*24*time.Hour, "time until the invitation expires")
	cmd.Flags().StringVar(&note, "note", "", "name of the recipient, which appears only in the keeper's log")
	return cmd
}

func newMember(dir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "member", Short: "List, revoke and reset members"}
	list := &cobra.Command{
		Use: "list", Short: "List members", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := core.Ask(cmd.Context(), *dir, core.Command{Do: "members"})
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), r.Members)
			}
			t := cli.NewTable(cmd.OutOrStdout(), 0)
			fmt.Fprintln(t, "AGENT\tCELL\tSINCE\tSTATE")
			for _, m := range r.Members {
				fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", m.Agent, m.Cell, m.Since.Local().Format(time.DateTime), map[bool]string{false: "member", true: "revoked or reset"}[m.Revoked])
			}
			return t.Flush()
		},
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	one := func(do, short, long string) *cobra.Command {
		return &cobra.Command{Use: do + " AGENT", Short: short, Long: long, Example: "  loadstar keeper member " + do + " ag-4x2k", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			_, err := core.Ask(cmd.Context(), *dir, core.Command{Do: do, Agent: args[0]})
			return err
		}}
	}
	cmd.AddCommand(
		list,
		one("revoke", "End a membership", "End a membership. Later sums exclude the agent."),
		one("reset", "Remove the key of a member, so that it can enrol again", "Remove the key of a member that has lost it. To enrol again, the agent needs a\nnew invitation. Its age as a member then starts at zero."))
	return cmd
}

func newApprove(dir *string) *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use:   "approve PLAN",
		Short: "Approve a plan, if keeper.yaml has plans: approved",
		Long: `Approve a plan. PLAN is a file with the settled plan, as the server sends it to
agents, or the SHA-256 of the plan in hexadecimal, which the keeper's log and
'loadstar run show' print.`,
		Example: "  loadstar keeper approve 9f86d081…",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			plan := args[0]
			data, err := os.ReadFile(plan)
			switch {
			case err == nil:
				sum := sha256.Sum256(data)
				plan = hex.EncodeToString(sum[:])
			case !errors.Is(err, fs.ErrNotExist):
				return err
			case len(plan) != 2*sha256.Size:
				return cli.Usagef("%s is neither a file nor a SHA-256", plan)
			}
			if _, err := core.Ask(cmd.Context(), *dir, core.Command{Do: "approve", Plan: plan, Note: note}); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "approved plan", plan)
			return nil
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "reason for the approval, which appears only in the keeper's log")
	return cmd
}

func newLog(dir *string) *cobra.Command {
	var (
		last   int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "log", Short: "Print joins, releases and changes", Args: cobra.NoArgs,
		Long:    "Print the keeper's log, oldest first. The log lists joins, departures, released\nsums and the actions of the keeper's administrators. Each entry contains the\nhash of the previous entry.",
		Example: "  loadstar keeper log --last 20",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := core.Ask(cmd.Context(), *dir, core.Command{Do: "log", Last: last})
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), r.Entries)
			}
			t := cli.NewTable(cmd.OutOrStdout(), 0)
			fmt.Fprintln(t, "NUMBER\tTIME\tWHAT\tDETAILS")
			for _, e := range r.Entries {
				fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", e.Number, e.At.Local().Format(time.DateTime), e.Kind, e.Text)
			}
			return t.Flush()
		},
	}
	cmd.Flags().IntVar(&last, "last", 100, "number of entries")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newShow(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show the keeper's identity and rules", Args: cobra.NoArgs,
		Long:    "Show the keeper's identity, and the rules that it states to agents.",
		Example: "  loadstar keeper show",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := core.Ask(cmd.Context(), *dir, core.Command{Do: "show"})
			if err != nil {
				return err
			}
			s, err := r.ReadStatement()
			if err != nil {
				return err
			}
			show(cmd.OutOrStdout(), r, s.Fleet, s.Number, time.Unix(s.NotAfter, 0))
			rules := s.Rules
			fmt.Fprintf(cmd.OutOrStdout(), "rules      least %d agents, quorum %g of each cell, cells of %d, age %s, %s\n",
				rules.Least, float64(rules.Quorum)/1000, rules.Cell, time.Duration(rules.Age)*time.Second, map[bool]string{true: "by invitation", false: "members named by the server"}[rules.Invited])
			return nil
		},
	}
}

func show(out io.Writer, r core.Reply, fleet string, number int64, until time.Time) {
	fmt.Fprintf(out, "identity   %s\nfleet      %s\nrunning    %t\nstatement  %d, until %s\n", r.Identity, fleet, r.Running, number, until.Local().Format(time.DateOnly))
}
