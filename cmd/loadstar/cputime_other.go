//go:build !linux

package main

import "time"

var started = time.Now()

// threadTime returns the time since the start: what there is of CPU time here.
func threadTime() time.Duration { return time.Since(started) }
