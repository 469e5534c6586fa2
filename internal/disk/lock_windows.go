package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// TryLock locks a file. It returns ErrLocked immediately if another process has locked it.
func TryLock(f *os.File) error {
	err := lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}

// Lock locks a file and waits while another process holds the lock.
func Lock(f *os.File) error { return lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// Unlock releases the lock; the file stays open.
func Unlock(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, at())
}

func lock(f *os.File, flags uint32) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, at())
}

// at is the position of the locked byte, far beyond the end of any file. Windows does not
// let other handles read or write locked bytes, so no data may be locked.
func at() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 1 << 30} }
