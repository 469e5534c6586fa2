//go:build unix

package main

import "syscall"

// keepPrivate makes all files that this process creates readable only by its user, even
// files that libraries create.
func keepPrivate() { syscall.Umask(0o077) }
