// Command loadstar trains electricity-load forecasters across many meters and
// buildings without collecting their readings: server, simulator and command line
// in one binary.
//
// Each command has its own file. It reads flags, calls the packages below and prints
// the result.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/bench"
	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/keeper"
	"loadstar/cmd/loadstar/operate"
	"loadstar/internal/nearby"
	"loadstar/lab/sim"
)

// version is set by the Makefile.
var version = "0.1.0-dev"

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
	fmt.Fprintln(stderr, "loadstar:", nearby.Explain(err))
	code, hint := cli.Exit(err)
	if hint != "" {
		fmt.Fprintln(stderr, hint)
	}
	return code
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
	root.AddCommand(newDemo(), newData(), newForecast(), newBacktest(), newScore(), newModel(), newPlan(), newSimulate(), newTune(), newAdvise(), newCompare(), newReport(), newReproduce(),
		newServe(), keeper.Command(), newAgent(), newBackup(), newRestore(), newDoctor(), bench.Command(), newVersion(), newGlossary(),
		&cobra.Command{Use: "exit-codes", Short: "List the exit codes", Long: cli.ExitCodes})
	root.AddCommand(operate.Commands()...)
	arrange(root)
	completeValues(root)
	cli.Help(root)
	describeDefaults(root)
	cli.Wrap(root)
	return root
}
