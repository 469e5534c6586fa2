package disk

import "errors"

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("another process holds the lock")
