// Command loadstar trains electricity-load forecasters across many meters and
// buildings without collecting their readings: server, simulator and command line
// in one binary.
//
// Each command has its own file. It reads flags, calls the packages below and prints
// the result.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/internal/config"
	"loadstar/lab/sim"
)

// version is set by the Makefile.
var version = "dev"

// These are the exit codes, which the help topic of that name documents.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

func execute(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	// Do not replace the error of an interrupted simulation, because it says how to resume.
	if own := (&sim.Interrupted{}); ctx.Err() != nil && !errors.As(err, &own) {
		err = errors.New("interrupted")
	}
	fmt.Fprintln(stderr, "loadstar:", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Try 'loadstar %s--help'.\n", usage.path)
		return exitUsage
	}
	if own := (exitError{}); errors.As(err, &own) {
		return own.code
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "loadstar",
		Short: "Federated training of electricity-load forecasters",
		Long: `Loadstar trains electricity-load forecasters across many meters and buildings
without collecting their readings. Every client keeps its data and its personal
layers. Only the shared model layers are sent to the server, which combines
them.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	for _, g := range []struct {
		title string
		of    []*cobra.Command
	}{
		{"Data and models:", []*cobra.Command{newData(), newForecast(), newBacktest(), newModel()}},
		{"Training on this machine:", []*cobra.Command{newPlan(), newSimulate(), newCompare(), newReport(), newReproduce()}},
		{"Fleet:", []*cobra.Command{newServe(), newAgent(), newToken(), newClients(), newRuns(), newModels(), newAudit(), newBackup(), newRestore()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.of {
			c.GroupID = g.title
		}
		root.AddCommand(g.of...)
	}
	root.AddCommand(newBench(), newVersion(), newNATSNode(), &cobra.Command{
		Use:   "exit-codes",
		Short: "List the exit codes",
		Long: `Exit codes:
  0  success
  1  failure; the last line on standard error has the reason
  2  wrong command, flag or argument
  3  data check found a problem in the data, or forecast --strict a row that is
     not from the model`,
	})
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	wrapUsage(root)
	return root
}

// usageError is the error for a mistake on the command line.
type usageError struct {
	error
	path string // path of the command, with a trailing space
}

// wrapUsage turns errors in flags and arguments into usageErrors, for cmd and all its
// subcommands.
func wrapUsage(cmd *cobra.Command) {
	path := ""
	if cmd.HasParent() {
		path = cmd.CommandPath()[len("loadstar "):] + " "
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
			var known []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
			err = fmt.Errorf("%w; %s", err, config.Suggest("--"+unknown.GetSpecifiedName(), known))
		}
		return usageError{err, path}
	})
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
		if cmd.HasSubCommands() {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) != nil {
			return usageError{argumentError(cmd, args), path}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		wrapUsage(sub)
	}
}

// argumentError explains why cmd does not accept args.
func argumentError(cmd *cobra.Command, args []string) error {
	if cmd.HasSubCommands() {
		var known []string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				known = append(known, sub.Name())
			}
		}
		return fmt.Errorf("unknown command %q; %s", args[0], config.Suggest(args[0], known))
	}
	names := strings.Fields(cmd.Use)[1:]
	if len(args) < len(names) {
		return fmt.Errorf("missing argument %s", strings.Join(names[len(args):], " "))
	}
	return fmt.Errorf("unexpected argument %q", args[len(names)])
}

// printLine writes v as JSON on one line.
func printLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// printJSON writes v as indented JSON.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
