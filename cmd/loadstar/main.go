// Command loadstar trains electricity-load forecasters across many meters and
// buildings without collecting their readings: server, simulator and command line
// in one binary.
//
// Each verb has a file of its own, and wires together what the packages below
// provide.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"loadstar/lab/sim"
)

// version is set by the Makefile.
var version = "dev"

// Exit codes, documented in the help topic of that name.
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
	if told := (&sim.Interrupted{}); ctx.Err() != nil && !errors.As(err, &told) {
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
without collecting their readings: every client keeps its data and its personal
layers, only shared layers travel, and a server combines them.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	for _, g := range []struct {
		title string
		of    []*cobra.Command
	}{
		{"Data and models:", []*cobra.Command{newData(), newBacktest(), newModel()}},
		{"Training here:", []*cobra.Command{newPlan(), newSimulate(), newCompare(), newReport(), newReproduce()}},
		{"A fleet:", []*cobra.Command{newServe(), newAgent(), newToken(), newClients(), newRuns(), newAudit(), newBackup(), newRestore()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.of {
			c.GroupID = g.title
		}
		root.AddCommand(g.of...)
	}
	root.AddCommand(newBench(), newVersion(), newNATSNode(), &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: `Loadstar exits with
  0  if it did what it was asked to do
  1  if it failed; the reason is the last line on standard error
  2  if the command line was wrong
  3  if it checked data and found a problem in it (data check)`,
	})
	wrapUsage(root)
	return root
}

// usageError is a mistake on the command line.
type usageError struct {
	error
	path string // of the command, with a space behind it
}

// wrapUsage marks errors in flags and arguments of cmd and all below it.
func wrapUsage(cmd *cobra.Command) {
	path := ""
	if cmd.HasParent() {
		path = cmd.CommandPath()[len("loadstar "):] + " "
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err, path} })
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
		if cmd.HasSubCommands() {
			check = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return fmt.Errorf("unknown command %q", args[0])
				}
				return nil
			}
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err, path}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		wrapUsage(sub)
	}
}

// printLine writes v as JSON on one line.
func printLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// printJSON writes v as one indented document.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
