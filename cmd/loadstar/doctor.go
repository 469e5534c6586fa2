package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/operate"
	"loadstar/internal/doctor"
)

func newDoctor() *cobra.Command {
	var (
		c      doctor.Config
		asJSON bool

		listen, watch, web string

		resolve func() (server, operator string, err error)
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, a server's folder or an agent, and say what to do",
		Long: `Check what commonly stops a server or an agent: time zones, the clock compared
with the server's, certificates and the days left, ports, free disk, the folder
and whether a process uses it, the broker, the newest readings and the kernel
set. Each line is OK, WARN or FAIL, and says what to do. The command changes
nothing. The exit code is 3 if a check failed.

Without --agent it checks the server's folder and the server of the current
context; with --agent, the agent with this configuration.`,
		Example: "  loadstar doctor\n  loadstar doctor --agent agent.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if c.Server, c.Operator, err = resolve(); err != nil {
				return err
			}
			c.Version = version
			c.Ports = []doctor.Port{{Flag: "--listen", Address: listen}, {Flag: "--watch", Address: watch}, {Flag: "--web", Address: web}}
			found := doctor.Run(cmd.Context(), c)
			failed := 0
			for _, f := range found {
				if f.Level == doctor.Fail {
					failed++
				}
			}
			if asJSON {
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
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Agent, "agent", "", "check the agent with this configuration `file`")
	f.StringVar(&c.Dir, "dir", "loadstar-data", "the server's folder")
	f.StringVar(&listen, "listen", ":7443", "address that serve is to have for agents and operators")
	f.StringVar(&watch, "watch", "127.0.0.1:7444", "address that serve is to have for monitoring; empty for none")
	f.StringVar(&web, "web", "127.0.0.1:7445", "address that serve is to have for the dashboard; empty for none")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	resolve = operate.ServerFlags(f)
	return cmd
}
