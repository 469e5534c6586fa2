//go:build unix

package command

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyReload sends to c when the configuration is to be read again.
func notifyReload(c chan<- os.Signal) { signal.Notify(c, syscall.SIGHUP) }
