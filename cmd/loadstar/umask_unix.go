//go:build unix

package main

import "syscall"

// keepPrivate makes all files that this process creates, including those that libraries create,
// readable only by its user.
func keepPrivate() { syscall.Umask(0o077) }
