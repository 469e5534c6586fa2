//go:build !linux

package proc

import "time"

var started = time.Now()

// ThreadTime returns the time since the program started.
func ThreadTime() time.Duration { return time.Since(started) }

// CPUTime returns the time since the program started.
func CPUTime() time.Duration { return time.Since(started) }
