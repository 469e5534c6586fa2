//go:build unix

package command

import (
	"os"
	"syscall"
)

var reloadSignal os.Signal = syscall.SIGHUP
