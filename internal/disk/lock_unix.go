//go:build unix

package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// TryLock locks a file. It returns ErrLocked immediately if another process has locked it.
func TryLock(f *os.File) error {
	err := lock(f, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// Lock locks a file and waits while another process holds the lock.
func Lock(f *os.File) error { return lock(f, unix.LOCK_EX) }

// Unlock releases the lock; the file stays open.
func Unlock(f *os.File) error { return lock(f, unix.LOCK_UN) }

func lock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
