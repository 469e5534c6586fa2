//go:build !unix

package main

// keepPrivate does nothing: a folder's access list applies to its files.
func keepPrivate() {}
