//go:build !unix

package command

import "os"

// notifyReload does nothing, because this system has no such signal.
func notifyReload(chan<- os.Signal) {}
