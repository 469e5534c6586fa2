//go:build !unix

package command

import "os"

// notifyReload does nothing: there is no such signal here.
func notifyReload(chan<- os.Signal) {}
