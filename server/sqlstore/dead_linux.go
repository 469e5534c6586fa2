package sqlstore

import (
	"syscall"
	"time"
)

const tcpUserTimeout = 18 // TCP_USER_TIMEOUT, which package syscall lacks

// giveUpAfter makes the kernel end a connection if the peer does not acknowledge data for this
// time. Keep-alive probes alone are not enough, because the kernel sends none while data is
// unacknowledged.
func giveUpAfter(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) (err error) {
		if network == "unix" {
			return nil
		}
		if failed := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
		}); failed != nil {
			return failed
		}
		return err
	}
}
