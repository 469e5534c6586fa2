//go:build !unix

package main

// keepPrivate does nothing, because a folder's access list applies to its files.
func keepPrivate() {}
