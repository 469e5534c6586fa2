package cli

import (
	"os"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// describeDefaults replaces defaults that depend on the machine with descriptions in the help
// of cmd and its subcommands, so that help and man pages are the same on all machines.
func describeDefaults(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case (f.Name == "workers" || f.Name == "parallel") && f.DefValue == strconv.Itoa(runtime.NumCPU()):
			f.DefValue = "number of CPUs"
		case f.Name == "name" && f.DefValue != "" && f.DefValue == hostname():
			f.DefValue = "name of the machine"
		}
	})
	for _, sub := range cmd.Commands() {
		describeDefaults(sub)
	}
}

// hostname returns the name of the machine, or "" if it has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
