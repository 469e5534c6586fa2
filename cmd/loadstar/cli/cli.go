// Package cli contains the code that all commands share: errors with exit codes, JSON
// output and progress bars.
package cli

import (
	"context"
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

// The exit codes, which [ExitCodes] documents.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitProblems    = 3
	exitUnreachable = 4
	exitRefused     = 5
)

// ExitCodes is the text of the help topic.
const ExitCodes = `Exit codes:
  0  success
  1  failure; the last line on standard error gives the reason
  2  wrong command, flag or argument
  3  the command worked, but found a problem: faulty data (data check), a failed
     check (doctor), or a row that is not from the model (forecast --strict)
  4  the server cannot be reached
  5  the server refuses the call: the user's role does not allow it, or the user
     has no valid certificate`

// coded is an error with its own exit code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// Unreachable returns an error for a server that cannot be reached.
func Unreachable(err error) error { return coded{err, exitUnreachable} }

// Refused returns an error for a call that the user may not make.
func Refused(err error) error { return coded{err, exitRefused} }

// problems is the error of a command that succeeded and found a problem in its input.
type problems struct{ error }

// Problems returns an error for a command that succeeded and found a problem in its input.
func Problems(err error) error { return problems{err} }

// Usage returns an error for a mistake on the command line.
func Usage(err error) error { return usageError{error: err} }

// Usagef is like [Usage], but formats the message.
func Usagef(format string, a ...any) error { return Usage(fmt.Errorf(format, a...)) }

// Prepare adds help and error handling for flags and arguments to a program whose commands have
// been added.
func Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	setHelp(root)
	describeDefaults(root)
	wrap(root)
}

// Main runs a program with the given arguments and returns its exit code.
func Main(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	// An interrupted simulation prints how to resume it.
	if own := (&sim.Interrupted{}); ctx.Err() != nil && !errors.As(err, &own) {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(stderr, "%s: %v\n", root.Name(), explain(err))
	code, hint := exit(err)
	if hint != "" {
		fmt.Fprintln(stderr, hint)
	}
	return code
}

// exit returns the exit code for an error, and a hint for the user, which may be empty.
func exit(err error) (code int, hint string) {
	if usage := (usageError{}); errors.As(err, &usage) {
		return exitUsage, fmt.Sprintf("Try '%s --help'.", usage.path)
	}
	if own := (problems{}); errors.As(err, &own) {
		return exitProblems, ""
	}
	if own := (coded{}); errors.As(err, &own) {
		return own.code, ""
	}
	return exitFailed, ""
}

// usageError is the error for a mistake on the command line.
type usageError struct {
	error
	path string // path of the command
}

// wrap turns errors in flags and arguments into errors of [Usage], and adds the path of the
// command to these errors, for cmd and all its subcommands.
func wrap(cmd *cobra.Command) {
	path := cmd.CommandPath()
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
		if cmd.HasSubCommands() && cmd.RunE == nil {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) != nil {
			return usageError{argumentError(cmd, args), path}
		}
		return nil
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if usage := (usageError{}); errors.As(err, &usage) && usage.path == "" {
				return usageError{err, path}
			}
			return err
		}
	}
	for _, sub := range cmd.Commands() {
		wrap(sub)
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
