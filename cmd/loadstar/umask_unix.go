//go:build unix

package main

import "syscall"

// keepPrivate makes all files that this process creates readable only by its user, whatever
// library creates them.
func keepPrivate() { syscall.Umask(0o077) }
