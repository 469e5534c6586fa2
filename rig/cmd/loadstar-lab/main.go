// Command loadstar-lab reproduces papers and runs benchmarks. It is a separate program, so that
// an installation for forecasting contains no load generator and no rivals in Python.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
)

// version is set by the Makefile.
var version = "0.1.0-dev"

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

func execute(args []string, stdout, stderr io.Writer) int {
	return cli.Main(newRoot(), args, stdout, stderr)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "loadstar-lab",
		Short: "Papers and benchmarks of Loadstar",
		Long: `Reproduce the papers in the repository, and measure Loadstar on this machine.
The benchmarks of the server start the program loadstar, which must be in the
same folder as loadstar-lab or on the PATH.`,
		Version: version,
	}
	root.AddCommand(newReproduce(), newBench())
	cli.Prepare(root)
	return root
}
