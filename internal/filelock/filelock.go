// Package filelock locks files against other processes. The system releases a lock when
// the file is closed or the process ends.
package filelock

import "errors"

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("another process holds the lock")
