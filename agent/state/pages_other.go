//go:build !linux

package state

// dropPages does nothing: the system decides when to release the pages.
func dropPages([]byte) {}
