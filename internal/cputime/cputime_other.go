//go:build !linux

package cputime

import "time"

var started = time.Now()

// Thread returns the time since the program started.
func Thread() time.Duration { return time.Since(started) }

// Process returns the time since the program started.
func Process() time.Duration { return time.Since(started) }
