package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"loadstar/agent/command"
	"loadstar/agent/mqtt"
)

// agentConfig adds the flag --config to a command.
func agentConfig(cmd *cobra.Command, o *command.Options) {
	cmd.Flags().StringVar(&o.Config, "config", "agent.yaml", "the agent's configuration")
}

// agentOptions sets the options that all agent commands need.
func agentOptions(cmd *cobra.Command, o *command.Options) {
	o.Version, o.Out = version, cmd.OutOrStdout()
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
}

func newAgentCheck() *cobra.Command {
	var o command.Options
	var plans []string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check an agent's configuration, its model, its broker and its server",
		Long: `Check an agent's configuration, its model, its broker and its server, and print
its policy, which says which plans of a server it trains. With --plan, also
check whether the agent would train a plan.`,
		Example: "  loadstar agent check --plan plan.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			agentOptions(cmd, &o)
			return command.Check(cmd.Context(), o, plans...)
		},
	}
	agentConfig(cmd, &o)
	cmd.Flags().StringArrayVar(&plans, "plan", nil, "`file` of a plan to check against the policy; may be repeated")
	return cmd
}

func newAgentStatus() *cobra.Command {
	var o command.Options
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print the readings, forecasts and scores of an agent's clients",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			agentOptions(cmd, &o)
			return command.Status(cmd.Context(), o)
		},
	}
	agentConfig(cmd, &o)
	return cmd
}

func newAgentAudit() *cobra.Command {
	var o command.Options
	var client string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Attack a client's own updates and show what they reveal",
		Long: `Attack the newest updates of an agent's clients. The result compares the mean
load by hour of the day and single readings, as someone could compute them, with
the truth. The attacker knows everything except the readings that it guesses and
the agent's secret. No result leaves the machine. The audit takes minutes and
pauses training. It is not a proof. docs/privacy.md describes the remaining
risks.`,
		Example: "  loadstar agent audit --client main-panel",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			agentOptions(cmd, &o)
			return command.Audit(cmd.Context(), o, client, asJSON)
		},
	}
	agentConfig(cmd, &o)
	cmd.Flags().StringVar(&client, "client", "", "`name` of the client (default all)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newAgentDiscover() *cobra.Command {
	var (
		o      command.Options
		c      mqtt.Config
		listen time.Duration
	)
	cmd := &cobra.Command{
		Use:     "discover [BROKER]",
		Short:   "Listen to an MQTT broker and list the topics that look like meters",
		Example: "  loadstar agent discover mqtt://broker.local",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agentOptions(cmd, &o)
			if len(args) > 0 {
				c.Broker = args[0]
			}
			return command.Discover(cmd.Context(), o, c, listen)
		},
	}
	agentConfig(cmd, &o)
	f := cmd.Flags()
	f.DurationVar(&listen, "for", 30*time.Second, "how long to listen")
	f.StringVar(&c.User, "user", "", "user name at the broker")
	f.StringVar(&c.PasswordFile, "password-file", "", "`file` with the password")
	f.StringVar(&c.CAFile, "ca-file", "", "`file` with the certificates that sign the broker's")
	return cmd
}

func newAgentImport() *cobra.Command {
	var o command.Options
	cmd := &cobra.Command{
		Use:   "import DATA.prepared...",
		Short: "Import earlier readings into an agent that is not running",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agentOptions(cmd, &o)
			return command.Import(o, args)
		},
	}
	agentConfig(cmd, &o)
	return cmd
}

func newAgentAccept() *cobra.Command {
	var o command.Options
	cmd := &cobra.Command{
		Use:   "accept CLIENT",
		Short: "Accept a client's new scale: use readings that were marked as impossible",
		Long: `Use the readings of the last 28 days that were marked bad because they are far
beyond the client's earlier readings, and later ones of the same scale. Use it
if the client has really changed, for example because of a new boiler.
Otherwise, the agent accepts a new scale when it has filled half of 28 days.`,
		Example: "  loadstar agent accept main-panel",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agentOptions(cmd, &o)
			return command.Accept(cmd.Context(), o, args[0])
		},
	}
	agentConfig(cmd, &o)
	return cmd
}

func newAgentModel() *cobra.Command {
	cmd := &cobra.Command{Use: "model", Short: "Keep, release or roll back the model of a client"}
	for _, x := range []struct{ action, short string }{
		{"pin", "Keep the client's model until it is unpinned"},
		{"unpin", "Let the client choose its model again"},
		{"rollback", "Return to the previous model, and refuse the current one"},
	} {
		var o command.Options
		c := &cobra.Command{
			Use: fmt.Sprintf("%s CLIENT", x.action), Short: x.short, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				agentOptions(cmd, &o)
				return command.Model(cmd.Context(), o, x.action, args[0])
			},
		}
		agentConfig(c, &o)
		cmd.AddCommand(c)
	}
	return cmd
}
