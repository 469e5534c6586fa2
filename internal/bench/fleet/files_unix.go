//go:build unix

package fleet

import (
	"fmt"
	"syscall"
)

// spareFiles is how many files a process opens besides one connection for each agent.
const spareFiles = 256

// openFiles raises the limit of open files so that every agent can have a connection, here
// and in the server's process, which inherits the limit.
func openFiles(agents int) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if need := uint64(agents + spareFiles); l.Max < need {
		return fmt.Errorf("%d agents need %d open files in a process, and %d are allowed: raise the hard limit (ulimit -Hn), or use fewer --agents", agents, need, l.Max)
	}
	l.Cur = l.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}
