package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Run benchmarks on this machine"}
	cmd.AddCommand(newEngine(), newSimulate(), newSkill(), newUses(), newFleet(), newFleetEngine(), newFleetHTTP(), newPrivate(), newAgents(), newSoak())
	return cmd
}

// benchTime checks the values of --runs and --seconds, and returns the latter as a
// duration.
func benchTime(runs int, seconds float64) (time.Duration, error) {
	if runs < 1 || !(seconds > 0 && seconds < 3600) {
		return 0, errors.New("--runs must be at least 1, and --seconds above 0 and below 3600")
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
