//go:build unix

package command

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyReload sends to c when a signal asks to reload the configuration.
func notifyReload(c chan<- os.Signal) { signal.Notify(c, syscall.SIGHUP) }
