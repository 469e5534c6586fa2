//go:build unix

package fleet

import (
	"fmt"
	"syscall"
)

// spareFiles is the number of files that a process opens in addition to its
// connections.
const spareFiles = 256

// openFiles raises the limit of open files so that a process can have the given number of
// connections. The server's process inherits the limit.
func openFiles(connections int) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if need := uint64(connections + spareFiles); l.Max < need {
		return fmt.Errorf("%d connections need %d open files per process, but the hard limit is %d: raise it (ulimit -Hn), or reduce --agents", connections, need, l.Max)
	}
	l.Cur = l.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}
