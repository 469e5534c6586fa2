//go:build unix

package fleet

import (
	"fmt"
	"syscall"
)

// spareFiles is the number of files that a process opens in addition to one connection
// per agent.
const spareFiles = 256

// openFiles raises the limit of open files to one connection per agent. The server's
// process inherits the limit.
func openFiles(agents int) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if need := uint64(agents + spareFiles); l.Max < need {
		return fmt.Errorf("%d agents need %d open files per process, but the hard limit is %d: raise it (ulimit -Hn), or reduce --agents", agents, need, l.Max)
	}
	l.Cur = l.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}
