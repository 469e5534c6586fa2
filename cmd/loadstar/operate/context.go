package operate

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/mtls"
)

func newContext() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Store the servers that you work with",
		Long: `Store the servers that you work with, so that you need not repeat --server and
--operator. Flags take precedence over the environment (LOADSTAR_SERVER,
LOADSTAR_OPERATOR, LOADSTAR_CONTEXT), and the environment takes precedence over
the context. Contexts are stored in loadstar/config.yaml in $XDG_CONFIG_HOME or
~/.config. This file contains the paths of credentials, not the credentials
themselves.`,
		Example: "  loadstar context add home --server https://server.example.org:7443 --operator ~/operator\n  loadstar context use home",
	}
	cmd.AddCommand(newContextAdd(), newContextUse(), newContextList(), newContextRemove())
	return cmd
}

func newContextAdd() *cobra.Command {
	var c storedContext
	cmd := &cobra.Command{
		Use:     "add NAME",
		Short:   "Add or replace a context",
		Long:    `Add or replace a context. The first context becomes the current one.`,
		Example: "  loadstar context add home --server https://server.example.org:7443 --operator ~/operator",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !strings.HasPrefix(c.Server, "https://") {
				return cli.Usagef("--server %q must begin with https://: use an address such as %s", c.Server, defaultServer)
			}
			var err error
			if c.Operator, err = filepath.Abs(c.Operator); err != nil {
				return err
			}
			if _, err := mtls.ReadFolder(c.Operator); err != nil {
				return fmt.Errorf("--operator: %w; it must be a folder with key.pem, cert.pem and ca.pem, such as the server's DIR/operator", err)
			}
			f, err := loadContexts()
			if err != nil {
				return err
			}
			if err := f.Add(args[0], c); err != nil {
				return err
			}
			note := ""
			if f.Current != args[0] {
				note = "; to use it: loadstar context use " + args[0]
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "context %s: %s%s\n", args[0], c.Server, note)
			return err
		},
	}
	cmd.Flags().StringVar(&c.Server, "server", defaultServer, "`URL` of the server")
	cmd.Flags().StringVar(&c.Operator, "operator", defaultOperator, "`folder` with the operator's key.pem, cert.pem and ca.pem")
	return cmd
}

func newContextUse() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: cobra.ExactArgs(1), ValidArgsFunction: contextNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := loadContexts()
			if err != nil {
				return err
			}
			if err := f.Use(args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "context %s: %s\n", args[0], f.Contexts[args[0]].Server)
			return err
		},
	}
}

func newContextList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the contexts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := loadContexts()
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintLine(cmd.OutOrStdout(), map[string]any{"current": f.Current, "contexts": f.Contexts})
			}
			if len(f.Contexts) == 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "no contexts; add one with loadstar context add")
				return err
			}
			w := cli.NewTable(cmd.OutOrStdout(), 0)
			fmt.Fprintln(w, "CONTEXT\tCURRENT\tSERVER\tOPERATOR")
			for _, name := range f.Names() {
				current := ""
				if name == f.Current {
					current = "yes"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, cmp.Or(current, "-"), f.Contexts[name].Server, f.Contexts[name].Operator)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newContextRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a context, but not its credentials", Args: cobra.ExactArgs(1), ValidArgsFunction: contextNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := loadContexts()
			if err != nil {
				return err
			}
			if err := f.Remove(args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed context %s\n", args[0])
			return err
		},
	}
}

// contextNames completes the name of a context.
func contextNames(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	f, err := loadContexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.Names(), cobra.ShellCompDirectiveNoFileComp
}
