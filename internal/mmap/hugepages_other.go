//go:build unix && !linux

package mmap

// useHugePages does nothing: only Linux takes the hint.
func useHugePages([]byte) {}
