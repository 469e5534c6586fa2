//go:build !linux

package sqlstore

import (
	"syscall"
	"time"
)

// giveUpAfter does nothing, because other systems have no such setting. silentFor applies
// instead.
func giveUpAfter(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
