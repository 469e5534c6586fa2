// Command loadstar trains electricity-load forecasters across many meters and
// buildings without collecting their readings. The binary contains server,
// simulator and command line.
//
// Each command has its own file, which reads the flags, calls other packages and prints the
// result.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/operate"
)

// version is set by the Makefile.
var version = "0.1.0-dev"

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

func execute(args []string, stdout, stderr io.Writer) int {
	return cli.Main(newRoot(), args, stdout, stderr)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "loadstar",
		Short: "Federated training of electricity-load forecasters",
		Long: `Loadstar trains electricity-load forecasters across many meters and buildings
without collecting their readings. Every client keeps its data and its personal
layers. Only the shared model layers are sent to the server, which combines
them.`,
		Version: version,
	}
	root.AddCommand(newDemo(), newData(), newForecast(), newBacktest(), newScore(), newModel(), newPlan(), newSimulate(), newTune(), newAdvise(), newCompare(), newReport(),
		newServe(), operate.KeeperCommand(), newAgent(), newBackup(), newRestore(), newDoctor(), newVersion(),
		&cobra.Command{Use: "exit-codes", Short: "List the exit codes", Long: cli.ExitCodes})
	root.AddCommand(operate.Commands()...)
	arrange(root)
	completeValues(root)
	cli.Prepare(root)
	return root
}
